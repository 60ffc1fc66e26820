package lineside

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

var address string // of the real service that all tests call

func TestMain(m *testing.M) {
	where, stop, err := serve(filepath.Join("testdata", "lineside.toml"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	address = where
	code := m.Run()
	stop()
	os.Exit(code)
}

// serve starts the service of this checkout; LINESIDE_SERVICE names another executable.
func serve(config string) (where string, stop func(), err error) {
	command := os.Getenv("LINESIDE_SERVICE")
	if command == "" {
		command = filepath.Join("..", "..", ".venv", "bin", "lineside-service")
	}
	process := exec.Command(command, "serve", "--config", config)
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := process.Start(); err != nil {
		return "", nil, fmt.Errorf("%w; `make setup` in the root of the project installs it", err)
	}
	stop = func() {
		process.Process.Signal(syscall.SIGTERM)
		process.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	found := regexp.MustCompile(`SERVING on (\S+?):? `).FindStringSubmatch(line)
	if err != nil || found == nil {
		stop()
		return "", nil, fmt.Errorf("the service did not start: %q", line)
	}
	go io.Copy(io.Discard, out)
	return found[1], stop, nil
}

func client(t *testing.T, target string, options ...Option) *Client {
	t.Helper()
	c, err := New(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func within(t *testing.T, timeout time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

func mustCall(t *testing.T, tool string, arguments any, options ...CallOption) *pb.ToolCall {
	t.Helper()
	call, err := Call(tool, arguments, options...)
	if err != nil {
		t.Fatal(err)
	}
	return call
}

type args = map[string]any
