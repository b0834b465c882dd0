package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// letters reads token i as a letter.
type letters struct{}

func (letters) Push(ids ...int32) string {
	s := ""
	for _, id := range ids {
		s += string(rune('a' + id%26))
	}
	return s
}
func (letters) Flush() string { return "" }

func read(t *testing.T, s *Stream) (all Delta, parts int) {
	t.Helper()
	for {
		d, err := s.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return all, parts
		}
		require.NoError(t, err)
		parts++
		all.IDs, all.Logprobs = append(all.IDs, d.IDs...), append(all.Logprobs, d.Logprobs...)
		all.Raw, all.Top, all.Text = append(all.Raw, d.Raw...), append(all.Top, d.Top...), all.Text+d.Text
	}
}

func TestStreamIsTheGeneration(t *testing.T) {
	d := newFakeDecoder(2, 256)
	e := startEngine(t, d, EngineConfig{Text: func([]int32) TextStream { return letters{} }})
	req := GenerateRequest{Prompt: long(1, 5), MaxNew: 60, Sampling: model.Sampling{Temperature: 1, Seed: 3}, Raw: true, Top: 1}
	want, err := e.Generate(context.Background(), req)
	require.NoError(t, err)
	require.Len(t, want.Text, 60)
	require.Equal(t, 60, want.TextTokens)
	// A stop string from the middle of it.
	req.StopText = []string{"nowhere", want.Text[30:33]}
	want, err = e.Generate(context.Background(), req)
	require.NoError(t, err)
	require.Equal(t, FinishStop, want.Finish)
	require.Equal(t, want.StopText, req.StopText[1])
	require.Len(t, want.IDs, want.TextTokens+3, "the ids are honest: the stop string's three tokens stay")
	require.Len(t, want.Text, want.TextTokens)
	require.NoError(t, checkCold(req.Prompt, want, 3, 0))

	s, err := e.Stream(context.Background(), req)
	require.NoError(t, err)
	defer s.Close()
	all, parts := read(t, s)
	require.LessOrEqual(t, parts, len(want.IDs)+1)
	require.Equal(t, want.IDs, all.IDs)
	require.Equal(t, want.Logprobs, all.Logprobs)
	require.Equal(t, want.Raw, all.Raw)
	require.Equal(t, want.Top, all.Top)
	require.Equal(t, want.Text, all.Text)
	got := s.Generation()
	got.Cached = want.Cached
	require.Equal(t, want, got)
	_, err = s.Next(context.Background())
	require.ErrorIs(t, err, io.EOF)

	// The next turn goes on from the cut sequence.
	next := append(append([]int32(nil), req.Prompt...), want.IDs...)
	g, err := e.Generate(context.Background(), GenerateRequest{Prompt: next, MaxNew: 4, Sampling: model.Sampling{Temperature: 1}})
	require.NoError(t, err)
	require.NoError(t, checkCold(next, g, 0, 0))
}

// A stop token ends the text before its own, whatever comes with it.
func TestStopTokenHasNoText(t *testing.T) {
	d := newFakeDecoder(1, 256)
	d.stop, d.overrun = 9, true
	e := startEngine(t, d, EngineConfig{Text: func([]int32) TextStream { return letters{} }})
	for seed := range uint64(20) {
		g, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 100, Stop: []int32{9}, StopText: []string{"j"}, Sampling: model.Sampling{Temperature: 1, Seed: seed}})
		require.NoError(t, err)
		require.Equal(t, FinishStop, g.Finish)
		require.Equal(t, letters{}.Push(g.IDs[:len(g.IDs)-1]...), g.Text)
		require.Equal(t, len(g.IDs)-1, g.TextTokens)
		if g.IDs[len(g.IDs)-1] == 9 {
			require.Empty(t, g.StopText, "token 9 would read as j")
		}
	}
}

// Nobody reads: the engine serves others, and the reader finds all of it later.
func TestSlowReaderBlocksNobody(t *testing.T) {
	d := newFakeDecoder(2, 1024)
	e := startEngine(t, d, EngineConfig{})
	s, err := e.Stream(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 500})
	require.NoError(t, err)
	defer s.Close()
	_, err = e.Generate(context.Background(), GenerateRequest{Prompt: prompt(2), MaxNew: 900})
	require.NoError(t, err)
	all, parts := read(t, s)
	require.Len(t, all.IDs, 500)
	require.Equal(t, 1, parts, "a slow reader gets batches")
}

func TestStreamEnds(t *testing.T) {
	d := newFakeDecoder(1, 1<<16)
	e := startEngine(t, d, EngineConfig{})
	ctx, cancel := context.WithCancelCause(context.Background())
	s, err := e.Stream(ctx, GenerateRequest{Prompt: prompt(1), MaxNew: 1 << 15})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Next(context.Background())
	require.NoError(t, err)
	gone := errors.New("client gone")
	cancel(gone)
	for err == nil {
		_, err = s.Next(context.Background())
	}
	require.ErrorIs(t, err, gone)
	_, err = e.Generate(context.Background(), GenerateRequest{Prompt: prompt(2), MaxNew: 3})
	require.NoError(t, err, "the slot is free again")

	late, stop := context.WithCancel(context.Background())
	stop()
	s, err = e.Stream(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 1 << 15})
	require.NoError(t, err)
	for err == nil {
		_, err = s.Next(late)
	}
	require.ErrorIs(t, err, context.Canceled)
	s.Close()
	_, err = e.Stream(context.Background(), GenerateRequest{Prompt: prompt(1)})
	require.ErrorContains(t, err, "MaxNew is 0")
	s, err = e.Stream(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 1 << 15})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, e.Close())
	for err == nil {
		_, err = s.Next(context.Background())
	}
	require.ErrorIs(t, err, ErrEngineClosed)
}

// A request waits for a slot no longer than its deadline, even while the decoder
// is at work; in fake time.
func TestDeadlineInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDecoder(1, 64)
		g := newGate(d, 1)
		e, err := NewEngine(d, EngineConfig{Slots: 1, MaxLen: 64})
		require.NoError(t, err)
		first := make(chan error)
		go func() {
			_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 2})
			first <- err
		}()
		<-g.reached
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, fmt.Errorf("a minute is over"))
		defer cancel()
		start := time.Now()
		_, err = e.Generate(ctx, GenerateRequest{Prompt: prompt(2), MaxNew: 2})
		require.ErrorContains(t, err, "a minute is over")
		require.Equal(t, time.Minute, time.Since(start))
		close(g.release)
		require.NoError(t, <-first)
		require.NoError(t, e.Close())
		st := e.Stats()
		require.Equal(t, uint64(2), st.Requests)
		require.Equal(t, uint64(1), st.Failed)
		require.Equal(t, time.Minute, st.FirstToken.Sum)
		require.Equal(t, HistogramBound(20), st.FirstToken.Quantile(0.5), "67 s is the first bound above a minute")
	})
}
