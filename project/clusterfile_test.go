package project

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const fleetText = `
authority: /etc/skein/keys
metrics: 0.0.0.0:9400
nodes:
  - {id: replay-1, host: 10.0.0.1, roles: [replay]}
  - {id: replay-2, host: 10.0.0.2, roles: [replay], listen: 0.0.0.0}
  - {id: replay-3, host: 10.0.0.3, roles: [replay, worker], dir: /data/skein}
  - {id: gpu-1, host: gpu-1, roles: [learner], config: run.yaml, set: [training.max_steps=9]}
`

func TestClusterFile(t *testing.T) {
	f, err := parseClusterFile([]byte(fleetText))
	require.NoError(t, err)
	addrs := []string{"10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"}
	require.Equal(t, addrs, f.Addresses(""))

	n, err := f.Node("replay-2", "whatever")
	require.NoError(t, err)
	o := f.Options(n)
	require.NoError(t, o.Validate())
	require.Equal(t, NodeOptions{
		Roles: []string{"replay"}, Dir: "/var/lib/skein", ID: "replay-2", Listen: "0.0.0.0:7400", Advertise: "10.0.0.2:7400",
		Join: addrs, Authority: "/etc/skein/keys", Founder: "replay-1", Metrics: "0.0.0.0:9400",
	}, o)

	n, err = f.Node("", "gpu-1")
	require.NoError(t, err)
	require.Equal(t, []string{"training.max_steps=9"}, n.Set)
	require.Empty(t, f.Options(n).Listen)
	_, err = f.Node("", "elsewhere")
	require.ErrorContains(t, err, "say which with --id: replay-1, replay-2, replay-3, gpu-1")
	_, err = f.Node("gpu-9", "")
	require.ErrorContains(t, err, `--id "gpu-9"`)
}

func TestClusterFileReportsEveryProblem(t *testing.T) {
	_, err := parseClusterFile([]byte(`
nods: []
nodes:
  - {id: a, host: h, roles: [replay]}
  - {id: a, host: h, roles: [replay, king], config: run.yaml}
  - {id: c, roles: [replay], port: 99999}
  - {id: d, roles: [replay], host: x}
  - {id: e}
`))
	for _, want := range []string{
		"nods: unknown key", "authority", `nodes[1].id: "a"`, `nodes[1].roles: "king"`, `nodes[1].config`, "h:7400 is that of a too",
		"nodes[2].port: 99999", "nodes[2].host", "4 replay nodes: use 1, 3 or 5", "nodes[4].roles: none",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = parseClusterFile(nil)
	require.ErrorContains(t, err, "a mapping with the key nodes")
	_, err = parseClusterFile([]byte("authority: k\nnodes:\n  - {id: w, roles: [worker]}\n"))
	require.ErrorContains(t, err, "no replay node")
}
