package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
)

// streamReport is what one run over one batch stream prints, as JSON.
type streamReport struct {
	Frames  int64   `json:"frames"`
	Items   int64   `json:"items"`
	Answers int     `json:"answers"`
	Errors  int     `json:"errors"`
	Refused int     `json:"refused_frames"`
	Written int     `json:"answer_frames"`
	Seconds float64 `json:"seconds"`
}

// frames sends n frames on one stream, so many unanswered at once, and half-closes.
func frames(conn *grpc.ClientConn, method string, body template, perFrame int, window int, n int64) (streamReport, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return streamReport{}, err
	}
	report := streamReport{Frames: n, Items: n * int64(perFrame)}
	room := make(chan struct{}, window) // filled by what is sent, emptied by a frame's worth of answers
	began := time.Now()
	failed := make(chan error, 1)
	go func() { failed <- send(ctx, stream, body, room, n) }()
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return report, fmt.Errorf("after %d answers: %w", report.Answers, err)
		}
		before := report.done() / perFrame
		answers, errors, refused := itemOutcomes(answer)
		report.Answers, report.Errors, report.Refused = report.Answers+answers, report.Errors+errors, report.Refused+refused
		report.Written++
		for range report.done()/perFrame - before {
			<-room
		}
	}
	report.Seconds = time.Since(began).Seconds()
	return report, <-failed
}

func (r *streamReport) done() int { return r.Answers + r.Errors }

func send(ctx context.Context, stream grpc.ClientStream, body template, room chan<- struct{}, n int64) error {
	for range n {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		frame := body.fresh()
		if err := stream.SendMsg(&frame); err != nil {
			return err
		}
	}
	return stream.CloseSend()
}
