package lineside

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

func (s *settings) transport() credentials.TransportCredentials {
	if s.tls == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(s.tls)
}

// checkToken refuses a token that no header can carry, or that everybody on the way could read.
func (s *settings) checkToken(target string) error {
	isOdd := func(letter rune) bool { return letter <= ' ' || letter > '~' }
	if *s.token == "" || strings.ContainsFunc(*s.token, isOdd) {
		return errors.New("lineside: the token must be printable ASCII without spaces, and not empty")
	}
	if s.tls == nil && !s.isInsecureToken && !isLoopback(target) {
		return fmt.Errorf("lineside: the token would travel in plaintext to %s: use WithTLS, or say WithInsecureToken "+
			"if the network in between is trusted", target)
	}
	return nil
}

type bearer struct {
	token    string
	needsTLS bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity is false for loopback and WithInsecureToken alone; New has checked the rest.
func (b bearer) RequireTransportSecurity() bool { return b.needsTLS }

// isLoopback tells whether every address of a gRPC target is this machine itself.
func isLoopback(target string) bool {
	scheme, rest, found := strings.Cut(target, ":")
	if found {
		switch scheme {
		case "unix", "unix-abstract":
			return true
		case "dns", "passthrough", "ipv4", "ipv6": // dns://authority/host:port, dns:host:port, ipv4:address:port,...
			target = rest
			if withAuthority, has := strings.CutPrefix(rest, "//"); has {
				_, target, _ = strings.Cut(withAuthority, "/")
			}
		}
	}
	for _, address := range strings.Split(target, ",") {
		if !isLoopbackHost(address) {
			return false
		}
	}
	return true
}

func isLoopbackHost(address string) bool {
	host := address
	if inner, has := strings.CutPrefix(address, "["); has {
		host, _, _ = strings.Cut(inner, "]")
	} else if strings.Count(address, ":") == 1 {
		host, _, _ = strings.Cut(address, ":")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
