// Contract runs the scenarios of the contract suite through this client, and prints what it got: tests/contract/README.md
// has the format.
//
//	contract FILE
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	lineside "github.com/lineside/lineside/client/go"
)

// scenario is some steps, in order, on one connection.
type scenario struct {
	ID    string  `json:"id"`
	Via   string  `json:"via"`
	Token *string `json:"token"`
	Steps []step  `json:"steps"`
}

// step does one thing; requests stay as text, for proto3 JSON to be read.
type step struct {
	Dispatch json.RawMessage     `json:"dispatch"`
	Batch    []json.RawMessage   `json:"batch"`
	Frames   [][]json.RawMessage `json:"frames"`
	Unary    *unary              `json:"unary"`
	Parallel []step              `json:"parallel"`

	TimeoutS     float64           `json:"timeout_s"`
	CancelAfterS float64           `json:"cancel_after_s"`
	Metadata     map[string]string `json:"metadata"`
	Parent       string            `json:"parent"`
}

type unary struct {
	Method  string          `json:"method"`
	Request json.RawMessage `json:"request"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "contract:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: contract FILE")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var file struct {
		Scenarios []scenario `json:"scenarios"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return err
	}
	known, err := fromEnvironment()
	if err != nil {
		return err
	}
	defer known.close()
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for _, one := range file.Scenarios {
		answers, err := known.answers(one)
		if err != nil {
			return fmt.Errorf("%s: %w", one.ID, err)
		}
		if err := out.Encode(map[string]any{"id": one.ID, "answers": answers}); err != nil {
			return err
		}
	}
	return nil
}

// clients makes one for each address and token, when first needed.
type clients struct {
	addresses map[string]string
	token     string
	tls       *tls.Config
	made      map[[2]string]*lineside.Client
}

func fromEnvironment() (*clients, error) {
	known := &clients{token: os.Getenv("LINESIDE_TOKEN"), made: map[[2]string]*lineside.Client{}}
	if err := json.Unmarshal([]byte(os.Getenv("LINESIDE_ADDRESSES")), &known.addresses); err != nil {
		return nil, fmt.Errorf("LINESIDE_ADDRESSES: %w", err)
	}
	if path := os.Getenv("LINESIDE_CA"); path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", path)
		}
		known.tls = &tls.Config{RootCAs: roots}
	}
	return known, nil
}

func (c *clients) of(via, token string) (*lineside.Client, error) {
	key := [2]string{via, token}
	if client := c.made[key]; client != nil {
		return client, nil
	}
	address, has := c.addresses[via]
	if !has {
		return nil, fmt.Errorf("no address %q", via)
	}
	var options []lineside.Option
	if token != "" {
		options = append(options, lineside.WithToken(token))
	}
	if c.tls != nil {
		options = append(options, lineside.WithTLS(c.tls))
	}
	client, err := lineside.New(address, options...)
	c.made[key] = client
	return client, err
}

func (c *clients) close() {
	for _, client := range c.made {
		if client != nil {
			client.Close()
		}
	}
}

func (c *clients) answers(one scenario) ([]any, error) {
	via, token := "direct", c.token
	if one.Via != "" {
		via = one.Via
	}
	if one.Token != nil {
		token = *one.Token
	}
	client, err := c.of(via, token)
	if err != nil {
		return nil, err
	}
	answers := make([]any, len(one.Steps))
	for number, step := range one.Steps {
		if answers[number], err = step.do(client); err != nil {
			return nil, fmt.Errorf("step %d: %w", number, err)
		}
	}
	return answers, nil
}
