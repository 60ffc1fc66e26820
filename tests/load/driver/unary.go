package main

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// report is what one run prints, as JSON. Latencies are milliseconds from the send.
type report struct {
	Sent     int64            `json:"sent"`
	Seconds  float64          `json:"seconds"` // from the first send to the last send
	Drained  float64          `json:"drained"` // from the first send to the last answer
	Codes    map[string]int64 `json:"codes"`
	OK       quantiles        `json:"ok_ms"`
	Refused  quantiles        `json:"refused_ms"` // RESOURCE_EXHAUSTED
	Others   quantiles        `json:"others_ms"`
	Hintless int64            `json:"hintless"`  // refusals without a RetryInfo
	BehindMs float64          `json:"behind_ms"` // open loop: the longest that a send came late
}

// unary sends calls and counts how they end.
type unary struct {
	method   string
	body     template
	conns    []*grpc.ClientConn
	deadline time.Duration

	ok, refused, others histogram
	codes               [17]atomic.Int64
	hintless            atomic.Int64
}

var retryInfo = []byte("google.rpc.RetryInfo")

func (u *unary) call(number int64) {
	ctx, cancel := context.WithTimeout(context.Background(), u.deadline)
	defer cancel()
	request := u.body.fresh()
	var answer []byte
	var trailer metadata.MD
	began := time.Now()
	err := u.conns[number%int64(len(u.conns))].Invoke(ctx, u.method, &request, &answer, grpc.Trailer(&trailer))
	took, code := time.Since(began), status.Code(err)
	u.codes[code].Add(1)
	switch code {
	case codes.OK:
		u.ok.add(took)
	case codes.ResourceExhausted:
		u.refused.add(took)
		if details := trailer.Get("grpc-status-details-bin"); len(details) == 0 || !bytes.Contains([]byte(details[0]), retryInfo) {
			u.hintless.Add(1)
		}
	default:
		u.others.add(took)
	}
}

// closedLoop keeps so many calls in flight until n were sent.
func (u *unary) closedLoop(inFlight int, n int64) report {
	var next atomic.Int64
	var callers sync.WaitGroup
	began := time.Now()
	for range inFlight {
		callers.Go(func() {
			for number := next.Add(1); number <= n; number = next.Add(1) {
				u.call(number)
			}
		})
	}
	callers.Wait()
	took := time.Since(began)
	return u.report(n, took, took, 0)
}

// openLoop sends at a steady rate, whatever comes back, for so long. A send that is due while the driver had no core is
// sent at once afterwards.
func (u *unary) openLoop(rate float64, length time.Duration) report {
	var callers sync.WaitGroup
	var sent int64
	var behind time.Duration
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for elapsed := time.Duration(0); elapsed < length; elapsed = time.Since(began) {
		for due := int64(elapsed.Seconds() * rate); sent < due; {
			sent++
			number := sent
			callers.Go(func() { u.call(number) })
		}
		behind = max(behind, time.Since(began)-time.Duration(float64(sent)/rate*float64(time.Second)))
		<-tick.C
	}
	took := time.Since(began)
	callers.Wait()
	return u.report(sent, took, time.Since(began), behind)
}

func (u *unary) report(sent int64, sending, drained, behind time.Duration) report {
	counts := map[string]int64{}
	for code := range u.codes {
		if count := u.codes[code].Load(); count > 0 {
			counts[codes.Code(code).String()] = count
		}
	}
	return report{
		Sent: sent, Seconds: sending.Seconds(), Drained: drained.Seconds(), Codes: counts,
		OK: u.ok.quantiles(), Refused: u.refused.quantiles(), Others: u.others.quantiles(),
		Hintless: u.hintless.Load(), BehindMs: float64(behind) / float64(time.Millisecond),
	}
}
