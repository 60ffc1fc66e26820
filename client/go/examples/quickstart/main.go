// Quickstart calls the five tools of `make run`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	lineside "github.com/lineside/lineside/client/go"
)

func main() {
	target := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	client, err := lineside.New(target)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	// With a key, sending it twice books one seat.
	call, err := lineside.Call("book_flight", map[string]any{"flight": "LS 101", "passenger": "Ada"}, lineside.WithKey("trip-go"))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		answer, err := client.Dispatch(ctx, call)
		if failure, ok := lineside.AsError(err); ok {
			log.Fatalf("%v; next: %v", failure, failure.Dispatch.GetNext())
		}
		fmt.Println(answer.GetSource(), string(answer.GetResultJson()))
	}
}
