// Caller makes one call of a tool under a span of its own, exports that span, and prints what it saw as JSON.
//
//	caller HOST:PORT TOOL ARGUMENTS
//
// Exporter, sampler and service name come from the standard OTEL_* variables.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	lineside "github.com/lineside/lineside/client/go"
)

// seen is the caller's side of the story: its own span, and what the answer says.
type seen struct {
	TraceID       string `json:"trace_id"`
	SpanID        string `json:"span_id"`
	AnswerTraceID string `json:"answer_trace_id"`
	CallID        string `json:"call_id"`
	Attempts      int32  `json:"attempts"`
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: caller HOST:PORT TOOL ARGUMENTS")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		log.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	said, err := ask(ctx, provider.Tracer("caller"), os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	if err := provider.Shutdown(ctx); err != nil { // sends what is queued
		log.Fatal(err)
	}
	line, err := json.Marshal(said)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}

// ask makes the call; lineside.Client sends the context's trace along.
func ask(ctx context.Context, tracer trace.Tracer, target, tool, arguments string) (seen, error) {
	client, err := lineside.New(target)
	if err != nil {
		return seen{}, err
	}
	defer client.Close()
	call, err := lineside.Call(tool, json.RawMessage(arguments))
	if err != nil {
		return seen{}, err
	}
	ctx, span := tracer.Start(ctx, "go asks for "+tool, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	answer, err := client.Dispatch(ctx, call)
	if err != nil {
		return seen{}, err
	}
	own := span.SpanContext()
	return seen{
		TraceID:       own.TraceID().String(),
		SpanID:        own.SpanID().String(),
		AnswerTraceID: answer.GetTraceId(),
		CallID:        answer.GetCallId(),
		Attempts:      answer.GetAttempts(),
	}, nil
}
