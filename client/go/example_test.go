package lineside_test

import (
	"context"
	"fmt"
	"log"
	"time"

	lineside "github.com/lineside/lineside/client/go"
	pb "github.com/lineside/lineside/client/go/linesidev1"
)

func Example() {
	client, err := lineside.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	call, err := lineside.Call("book_flight", map[string]any{"flight": "LS 101", "passenger": "Ada"}, lineside.WithKey("trip-1"))
	if err != nil {
		log.Fatal(err)
	}
	answer, err := client.Dispatch(ctx, call)
	if failure, ok := lineside.AsError(err); ok {
		log.Fatal(failure.Kind, failure.Outcome, failure.Dispatch.GetNext())
	}
	fmt.Println(string(answer.GetResultJson()), answer.GetSource())
}

func ExampleClient_Batch() {
	client, err := lineside.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel() // before the connection is closed; it also frees the sender below
	calls := make(chan *pb.ToolCall)
	go func() {
		defer close(calls)
		for amount := range 1000 {
			call, err := lineside.Call("convert", map[string]any{"amount": amount, "frm": "EUR", "to": "USD"})
			if err != nil {
				log.Fatal(err)
			}
			select {
			case calls <- call:
			case <-ctx.Done():
				return
			}
		}
	}()
	for result := range client.Batch(ctx, calls) {
		if result.Err != nil {
			log.Print(result.Position, result.Err)
			continue
		}
		fmt.Println(result.Position, string(result.Answer.GetResultJson()))
	}
}
