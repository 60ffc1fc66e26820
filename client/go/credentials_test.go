package lineside

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

const token = "ls_test_of_the_go_client"

func TestATokenOverTLS(t *testing.T) {
	authority := newAuthority(t)
	where := secured(t, authority, "", fmt.Sprintf("[[tokens]]\ntenant = \"acme\"\nsha256 = \"%x\"\n", sha256.Sum256([]byte(token))))
	trusting := WithTLS(&tls.Config{RootCAs: authority.pool()})
	echo := mustCall(t, "echo", args{"value": 1})
	for name, test := range map[string]struct {
		options []Option
		code    codes.Code
		outcome pb.Outcome
	}{
		"the token":            {[]Option{trusting, WithToken(token)}, codes.OK, 0},
		"another token":        {[]Option{trusting, WithToken("ls_another")}, codes.Unauthenticated, pb.Outcome_OUTCOME_NOT_RUN},
		"no token":             {[]Option{trusting}, codes.Unauthenticated, pb.Outcome_OUTCOME_NOT_RUN},
		"an unknown authority": {[]Option{WithTLS(nil), WithToken(token)}, codes.Unavailable, pb.Outcome_OUTCOME_NOT_RUN},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, where, test.options...)
			ends(t, c, echo, test.code, test.outcome)
			calls := make(chan *pb.ToolCall, 1)
			calls <- echo
			close(calls)
			if test.code == codes.Unavailable {
				return // a batch goes on trying for a while
			}
			switch failure := failureOf(collect(t, c.Batch(within(t, 10*time.Second), calls), 1)[0]); {
			case failure == nil && test.code == codes.OK:
			case failure == nil || failure.Code != test.code || failure.Outcome != test.outcome:
				t.Errorf("in a batch: %v", failure)
			}
		})
	}
}

func TestAClientCertificateNamesTheCaller(t *testing.T) {
	authority, stranger := newAuthority(t), newAuthority(t)
	where := secured(t, authority, authority.file(t), "[[certificates]]\nsan = \"planner.acme\"\ntenant = \"acme\"\n")
	with := func(certificates ...tls.Certificate) Option {
		return WithTLS(&tls.Config{RootCAs: authority.pool(), Certificates: certificates})
	}
	echo := mustCall(t, "echo", args{"value": 1})
	for name, test := range map[string]struct {
		option  Option
		code    codes.Code
		outcome pb.Outcome
	}{
		"its certificate":         {with(authority.pair(t, "planner.acme")), codes.OK, 0},
		"one of another name":     {with(authority.pair(t, "planner.other")), codes.Unauthenticated, pb.Outcome_OUTCOME_NOT_RUN},
		"none":                    {with(), codes.Unavailable, anyOutcome},
		"one of a stranger's own": {with(stranger.pair(t, "planner.acme")), codes.Unavailable, anyOutcome},
	} {
		t.Run(name, func(t *testing.T) { ends(t, client(t, where, test.option), echo, test.code, test.outcome) })
	}
}

func TestATokenDoesNotTravelInPlaintext(t *testing.T) {
	for target, isRefused := range map[string]bool{
		"127.0.0.1:50051": false, "127.8.0.1:1": false, "localhost:50051": false, "LOCALHOST": false, "[::1]:50051": false, "::1": false,
		"dns:///localhost:50051": false, "dns://9.9.9.9/localhost:1": false, "dns:localhost:1": false, "unix:/run/lineside": false,
		"unix-abstract:lineside": false, "passthrough:///127.0.0.1:1": false, "ipv4:127.0.0.1:1,127.0.0.2:1": false, "ipv6:[::1]:1": false,
		"lineside.example:50051": true, "10.0.0.7:50051": true, "0.0.0.0:1": true, "[2001:db8::1]:1": true, "dns:///lineside.example": true,
		"dns://127.0.0.1/lineside.example:1": true, "ipv4:127.0.0.1:1,10.0.0.7:1": true, "localhost.example:1": true, "other:///localhost:1": true,
	} {
		t.Run(target, func(t *testing.T) {
			c, err := New(target, WithToken(token))
			if err == nil {
				c.Close()
			}
			if isRefused != (err != nil && strings.Contains(err.Error(), "WithTLS")) {
				t.Errorf("%v", err)
			}
			for _, allow := range []Option{WithTLS(nil), WithInsecureToken()} {
				if c, err := New(target, WithToken(token), allow); err == nil {
					c.Close()
				} else if !strings.HasPrefix(target, "ipv") && !strings.HasPrefix(target, "other") { // schemes of other languages
					t.Error(err)
				}
			}
		})
	}
}

func TestGRPCsOwnOptionsDoNotTakeATokensTLSAway(t *testing.T) {
	plaintext := WithDialOptions(grpc.WithTransportCredentials(insecure.NewCredentials()))
	if _, err := New("lineside.example:50051", WithToken(token), WithTLS(nil), plaintext); err == nil {
		t.Error("the token would travel in plaintext")
	}
}

func TestATokenThatNoHeaderCarriesIsRefused(t *testing.T) {
	for _, odd := range []string{"", "two words", "line\nbreak", "t\u00f6ken"} {
		if _, err := New("localhost:1", WithToken(odd)); err == nil || strings.Contains(err.Error(), "line\nbreak") {
			t.Errorf("%q: %v", odd, err)
		}
	}
}

// anyOutcome: with TLS 1.3 the server may hang up after the handshake, which reads as a lost connection.
const anyOutcome = pb.Outcome_OUTCOME_UNSPECIFIED

// ends makes a call and looks how it ended.
func ends(t *testing.T, c *Client, call *pb.ToolCall, code codes.Code, outcome pb.Outcome) {
	t.Helper()
	_, err := c.Dispatch(within(t, 10*time.Second), call)
	if code == codes.OK {
		if err != nil {
			t.Error(err)
		}
		return
	}
	failure, ok := AsError(err)
	if !ok || failure.Code != code || outcome != anyOutcome && failure.Outcome != outcome {
		t.Errorf("%v", err)
	}
}

// secured is the address of a service with TLS, and with mTLS where clientCA names a file.
func secured(t *testing.T, authority *authority, clientCA, who string) string {
	t.Helper()
	directory := t.TempDir()
	authority.write(t, directory)
	tools, err := os.ReadFile(filepath.Join("testdata", "tools.py"))
	if err != nil {
		t.Fatal(err)
	}
	config := "[server]\nlisten = \"127.0.0.1:0\"\ntls_cert = \"server.pem\"\ntls_key = \"server.key\"\n"
	if clientCA != "" {
		config += fmt.Sprintf("client_ca = %q\n", clientCA)
	}
	config += "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nkind = \"memory\"\n[tools.echo]\ntarget = \"tools:echo\"\ntenants = [\"acme\"]\n" + who
	put(t, filepath.Join(directory, "tools.py"), tools)
	put(t, filepath.Join(directory, "lineside.toml"), []byte(config))
	where, stop, err := serve(filepath.Join(directory, "lineside.toml"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return where
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// authority signs throw-away certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, template := newKey(t), template("test authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{certificate, key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// pair is a certificate for a name, and for loopback's address.
func (a *authority) pair(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, template := newKey(t), template("caller")
	template.DNSNames, template.IPAddresses = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// write puts the server's certificate and key into a directory.
func (a *authority) write(t *testing.T, directory string) {
	t.Helper()
	pair := a.pair(t, "localhost")
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(directory, "server.pem"), asPEM("CERTIFICATE", pair.Certificate[0]))
	put(t, filepath.Join(directory, "server.key"), asPEM("PRIVATE KEY", key))
}

func (a *authority) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	put(t, path, asPEM("CERTIFICATE", a.certificate.Raw))
	return path
}

func asPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		panic(err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}
