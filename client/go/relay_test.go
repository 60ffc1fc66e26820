package lineside

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay stands between client and service and cuts its first connections when the service begins to answer.
type relay struct {
	address string
	mu      sync.Mutex
	left    int
	done    int
}

func newRelay(t *testing.T, cuts int) *relay {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	r := &relay{address: listener.Addr().String(), left: cuts}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go r.pass(near)
		}
	}()
	return r
}

func (r *relay) cuts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

func (r *relay) pass(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	go io.Copy(far, near)
	buffer := make([]byte, 64<<10)
	for {
		count, err := far.Read(buffer)
		if err != nil {
			return
		}
		if hasHeaders(buffer[:count]) && r.cut() {
			return
		}
		if _, err := near.Write(buffer[:count]); err != nil {
			return
		}
	}
}

func (r *relay) cut() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return false
	}
	r.left--
	r.done++
	return true
}

// hasHeaders tells whether HTTP/2 frames with an answer's headers begin in what was read: the call has run by then.
func hasHeaders(read []byte) bool {
	for len(read) >= 9 {
		length := int(read[0])<<16 | int(read[1])<<8 | int(read[2])
		if read[3] == 1 {
			return true
		}
		read = read[min(len(read), 9+length):]
	}
	return false
}
