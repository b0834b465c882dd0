package learner

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/skein-rl/skein/model"
)

// What learners of one run say to each other: a request and its answer at a
// time.
//
//	| header length u32 | header (JSON) | vectors (f32) ... |   little-endian

// Operations of a request. An answer repeats it.
const (
	opHello    = "hello"    // Hello
	opParams   = "params"   // keep vectors[0] as Vector at Place
	opScore    = "score"    // Groups under Vector at Place (0: no adapter) -> scores
	opForward  = "forward"  // the same, kept for gradient
	opGradient = "gradient" // derivatives by the last forward's -> gradient
)

// message is a request or an answer.
type message struct {
	Op          string              `json:"op"`
	Error       string              `json:"error,omitempty"` // of an answer; then nothing else holds
	Hello       *Hello              `json:"hello,omitempty"`
	Vector      uint64              `json:"vector,omitempty"`
	Place       int                 `json:"place,omitempty"`
	Temperature float64             `json:"temperature,omitempty"`
	Groups      []model.PrefixGroup `json:"groups,omitempty"`
	Lengths     []int               `json:"lengths,omitempty"` // of the vectors; -1 is nil
	vectors     [][]float32
}

// Hello says for what a learner asks another one's help. Both must agree in
// every field: only then does it not matter who computes.
type Hello struct {
	Protocol int    `json:"protocol"`
	Run      string `json:"run"`
	Base     string `json:"base"`    // model digest
	Params   string `json:"params"`  // digest of the parameters' layout
	Critic   string `json:"critic"`  // the same of the critic's; empty without one
	Backend  string `json:"backend"` // kind and number format
}

const protocol = 2

// scoreVectors are scores, or derivatives by them, as a message's vectors.
func scoreVectors(s model.Scores) [][]float32 {
	return [][]float32{s.LogProbs, s.Entropy, s.Values, s.MeanLogProb, s.LogSumSq}
}

// scores is the inverse of scoreVectors.
func (m *message) scores() (model.Scores, error) {
	v := m.vectors
	if want := len(scoreVectors(model.Scores{})); len(v) != want {
		return model.Scores{}, fmt.Errorf("%w: %d vectors, scores have %d", errMessage, len(v), want)
	}
	return model.Scores{LogProbs: v[0], Entropy: v[1], Values: v[2], MeanLogProb: v[3], LogSumSq: v[4]}, nil
}

// errMessage marks bytes that are no message.
var errMessage = errors.New("learner: malformed message")

const maxHeader = 64 << 20

func (m *message) encode() ([]byte, error) {
	m.Lengths = nil
	size := 0
	for _, v := range m.vectors {
		n := len(v)
		size += 4 * n
		if v == nil {
			n = -1
		}
		m.Lengths = append(m.Lengths, n)
	}
	head, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("learner: encode %s: %w", m.Op, err)
	}
	out := make([]byte, 0, 4+len(head)+size)
	out = append(binary.LittleEndian.AppendUint32(out, uint32(len(head))), head...)
	for _, v := range m.vectors {
		for _, x := range v {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		}
	}
	return out, nil
}

func decodeMessage(b []byte) (*message, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: %d bytes", errMessage, len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if n > maxHeader || int(n) > len(b) {
		return nil, fmt.Errorf("%w: a header of %d bytes in %d", errMessage, n, len(b))
	}
	m := &message{}
	if err := json.Unmarshal(b[:n], m); err != nil {
		return nil, fmt.Errorf("%w: header: %w", errMessage, err)
	}
	b = b[n:]
	for _, n := range m.Lengths {
		if n < 0 {
			m.vectors = append(m.vectors, nil)
			continue
		}
		if n > len(b)/4 {
			return nil, fmt.Errorf("%w: a vector of %d numbers in %d bytes", errMessage, n, len(b))
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		m.vectors, b = append(m.vectors, v), b[4*n:]
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", errMessage, len(b))
	}
	return m, nil
}
