package main

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	growth  = 1.02 // of each bucket over the one before: what a quantile may be wrong by
	buckets = 1200 // up to 1.02^1200 microseconds, 5 hours
)

// histogram counts durations in buckets of 2 %, from many goroutines at once.
type histogram struct {
	counts [buckets]atomic.Int64
}

func (h *histogram) add(d time.Duration) {
	us := max(float64(d)/float64(time.Microsecond), 1)
	h.counts[min(int(math.Log(us)/math.Log(growth)), buckets-1)].Add(1)
}

// quantiles are milliseconds.
type quantiles struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func (h *histogram) quantiles() quantiles {
	var q quantiles
	for i := range h.counts {
		q.Count += h.counts[i].Load()
	}
	q.P50, q.P99, q.Max = h.at(q.Count, 0.5), h.at(q.Count, 0.99), h.at(q.Count, 1)
	return q
}

func (h *histogram) at(count int64, share float64) float64 {
	wanted, seen := int64(math.Ceil(float64(count)*share)), int64(0)
	for i := range h.counts {
		if seen += h.counts[i].Load(); seen >= wanted && seen > 0 {
			return math.Pow(growth, float64(i+1)) / 1000
		}
	}
	return 0
}
