// Driver sends serialized requests to a gRPC server and prints, as one line of JSON, how they ended and what that took.
//
// Three ways: -c so many unary calls in flight (a closed loop), -rate so many a second whatever comes back (an open
// loop), -frame on one batch stream. It parses nothing that it does not count, since it shares a machine with the server.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func run() error {
	target := flag.String("target", "", "host:port")
	method := flag.String("method", "/lineside.v1.DispatchService/Dispatch", "full name of the method")
	file := flag.String("body", "", "file with the serialized request")
	placeholder := flag.String("unique", "", "text in the body that is replaced by a number new in each place and request")
	first := flag.Int64("first", 0, "the number to begin after")
	connections := flag.Int("connections", 4, "connections")
	inFlight := flag.Int("c", 1, "closed loop: calls in flight; batch stream: frames in flight")
	n := flag.Int64("n", 1000, "closed loop: calls; batch stream: frames")
	rate := flag.Float64("rate", 0, "open loop: calls a second")
	length := flag.Duration("for", 10*time.Second, "open loop: how long")
	deadline := flag.Duration("deadline", 30*time.Second, "of each unary call")
	perFrame := flag.Int("frame", 0, "batch stream: calls in the body, which is one frame")
	flag.Parse()

	raw, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	var next atomic.Int64
	next.Store(*first)
	body := newTemplate(raw, *placeholder, &next)
	conns, err := connect(*target, *connections)
	if err != nil {
		return err
	}
	if *perFrame > 0 {
		report, err := frames(conns[0], *method, body, *perFrame, *inFlight, *n)
		return print(report, err)
	}
	load := &unary{method: *method, body: body, conns: conns, deadline: *deadline}
	if *rate > 0 {
		return print(load.openLoop(*rate, *length), nil)
	}
	return print(load.closedLoop(*inFlight, *n), nil)
}

func connect(target string, connections int) ([]*grpc.ClientConn, error) {
	conns := make([]*grpc.ClientConn, connections)
	for i := range conns {
		conn, err := grpc.NewClient("passthrough:///"+target,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(16<<20)))
		if err != nil {
			return nil, err
		}
		conns[i] = conn
	}
	return conns, nil
}

func print(report any, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}
