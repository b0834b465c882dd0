package project

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
)

// A folder that holds another cluster's certificate is refused with a remedy,
// and so is a first start without a token.
func TestFolderOfAnotherCluster(t *testing.T) {
	node := func() *cluster.Node {
		cfg := cluster.DefaultConfig(t.TempDir())
		cfg.Logger = slog.New(slog.DiscardHandler)
		n, err := cluster.Open(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		require.NoError(t, n.WaitReady(t.Context(), 1))
		return n
	}
	a, b, dir := node(), node(), t.TempDir()
	join := func(n *cluster.Node, token, id, role string) error {
		c, err := dial(t.Context(), []string{n.Addr()}, token, id, role, dir)
		if err != nil {
			return err
		}
		return c.Close()
	}
	require.ErrorContains(t, join(a, "", "w", cluster.RoleWorker), "no token")
	require.ErrorContains(t, join(a, "skein0.x", "w", cluster.RoleWorker), "join token")
	require.NoError(t, join(a, a.Identity().Token().Reveal(), "w", cluster.RoleWorker))
	require.NoError(t, join(a, "", "w", cluster.RoleWorker), "later starts need no token")
	require.ErrorContains(t, join(b, b.Identity().Token().Reveal(), "w", cluster.RoleWorker), "use another directory")
	require.ErrorContains(t, join(a, "", "l", cluster.RoleLearner), "use another directory")
}
