package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// joined is a client of a role in a test cluster.
func joined(t *testing.T, c *testCluster, role, id string) *Client {
	t.Helper()
	tok, err := ParseToken(c.token)
	require.NoError(t, err)
	cl, err := Connect(testCtx(t), JoinConfig{Addrs: []string{c.nodes[0].Addr()}, Token: tok, ID: id, Role: role, Dir: filepath.Join(t.TempDir(), id)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cl.Close()) })
	return cl
}

func TestLearnersSpeakToEachOther(t *testing.T) {
	c := newTestCluster(t, 1)
	one, two := joined(t, c, RoleLearner, "one"), joined(t, c, RoleLearner, "two")
	worker := joined(t, c, RoleWorker, "w")
	ended := make(chan error, 3)
	srv, err := one.ServeLearner("", testLog(t), func(ctx context.Context, ch *Channel) error {
		for {
			m, err := ch.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil && string(m) == "stop" {
				err = errors.New("told to stop")
			}
			if err == nil {
				err = ch.Send(append([]byte(ch.From()+": "), m...))
			}
			if err != nil {
				ended <- err
				return err
			}
		}
	})
	require.NoError(t, err)
	defer srv.Close()

	ch, err := two.DialLearner(testCtx(t), srv.Addr(), "one")
	require.NoError(t, err)
	for _, m := range [][]byte{[]byte("a"), {}, bytes.Repeat([]byte("x"), 5<<20)} { // several frames
		require.NoError(t, ch.Send(m))
		got, err := ch.Recv()
		require.NoError(t, err)
		require.Equal(t, append([]byte("two: "), m...), got)
	}
	require.NoError(t, ch.Send([]byte("stop")))
	_, err = ch.Recv()
	require.ErrorContains(t, err, "told to stop")
	require.ErrorContains(t, <-ended, "told to stop")
	require.NoError(t, ch.Close())

	// Another id than the one that answers, another role, and no listener.
	for _, x := range []struct {
		from *Client
		addr string
		id   string
		want string
	}{{two, srv.Addr(), "three", "one answers where three was expected"}, {worker, srv.Addr(), "one", "is for learners"}, {two, c.nodes[0].Addr(), "one", "certificate"}} {
		ch, err := x.from.DialLearner(testCtx(t), x.addr, x.id)
		if err == nil {
			_, err = ch.Recv()
			require.NoError(t, ch.Close())
		}
		require.ErrorContains(t, err, x.want)
	}
	_, err = worker.ServeLearner("", testLog(t), nil)
	require.ErrorContains(t, err, "join as learner")

	// Closing the server ends what it serves.
	ch, err = two.DialLearner(testCtx(t), srv.Addr(), "one")
	require.NoError(t, err)
	require.NoError(t, ch.Send([]byte("a")))
	_, err = ch.Recv()
	require.NoError(t, err)
	srv.Close()
	_, err = ch.Recv()
	require.Error(t, err)
	require.NoError(t, ch.Close())
}
