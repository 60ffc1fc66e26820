package main

import (
	"bytes"
	"fmt"
	"sync/atomic"
)

// rawCodec hands bytes through: requests are serialized beforehand and answers are not parsed, so that the driver
// takes as little of the machine as it can from the server it measures.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

// template is a serialized request in which a placeholder stands for numbers that are new in every copy: keys, item ids.
type template struct {
	body  []byte
	at    []int
	width int
	next  *atomic.Int64
}

func newTemplate(body []byte, placeholder string, next *atomic.Int64) template {
	t := template{body: body, width: len(placeholder), next: next}
	for from := 0; placeholder != ""; {
		found := bytes.Index(body[from:], []byte(placeholder))
		if found < 0 {
			break
		}
		t.at = append(t.at, from+found)
		from += found + t.width
	}
	return t
}

func (t template) fresh() []byte {
	if len(t.at) == 0 {
		return t.body
	}
	body := bytes.Clone(t.body)
	for _, at := range t.at {
		copy(body[at:at+t.width], fmt.Sprintf("%0*d", t.width, t.next.Add(1)))
	}
	return body
}

// itemOutcomes counts a DispatchBatchResponse: items with an answer, items with an error, and refused frames.
func itemOutcomes(frame []byte) (answers, errors, refused int) {
	eachField(frame, func(number int, item []byte) {
		if number != 1 {
			refused++
			return
		}
		eachField(item, func(number int, _ []byte) {
			switch number {
			case 2:
				answers++
			case 3:
				errors++
			}
		})
	})
	return answers, errors, refused
}

// eachField walks the length-delimited fields of a message, the only sort that these messages have at these levels.
func eachField(message []byte, visit func(number int, value []byte)) {
	for len(message) > 0 {
		tag, rest := varint(message)
		size, rest := varint(rest)
		visit(int(tag>>3), rest[:size])
		message = rest[size:]
	}
}

func varint(data []byte) (uint64, []byte) {
	var value uint64
	for i, b := range data {
		value |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return value, data[i+1:]
		}
	}
	panic("a varint without an end")
}
