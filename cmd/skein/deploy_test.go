package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/project"
)

const deploy = "../../deploy/"

// composeFile is what the topology test needs of deploy/docker/compose.yaml.
type composeFile struct {
	Services map[string]struct {
		Command []string `yaml:"command"`
		Deploy  struct {
			Replicas int `yaml:"replicas"`
		} `yaml:"deploy"`
	} `yaml:"services"`
}

func readCompose(t *testing.T) composeFile {
	text, err := os.ReadFile(deploy + "docker/compose.yaml")
	require.NoError(t, err)
	var c composeFile
	require.NoError(t, yaml.Unmarshal(text, &c))
	require.Len(t, c.Services, 5)
	return c
}

// parses checks a command line of a deployment against the command's flags.
func parses(t *testing.T, where string, args []string) {
	t.Helper()
	cmd, rest, err := newRoot(&globals{}).Find(args)
	require.NoError(t, err, where)
	require.Equal(t, "node", cmd.Name(), where)
	require.NoError(t, cmd.ParseFlags(rest), where)
	require.NoError(t, cmd.ValidateFlagGroups(), where)
	require.NoError(t, cmd.ValidateRequiredFlags(), where)
}

// Every command line in deploy/ is one of this binary.
func TestDeploymentsUseFlagsThatExist(t *testing.T) {
	for name, s := range readCompose(t).Services {
		parses(t, name, s.Command)
	}

	text, err := os.ReadFile(deploy + "kubernetes/skein.yaml")
	require.NoError(t, err)
	dec, found := yaml.NewDecoder(bytes.NewReader(text)), 0
	for {
		var m struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct{ Args []string }
					}
				}
			}
		}
		err := dec.Decode(&m)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		for _, c := range m.Spec.Template.Spec.Containers {
			parses(t, m.Kind, c.Args)
			found++
		}
	}
	require.Equal(t, 3, found)

	unit, err := os.ReadFile(deploy + "systemd/skein.service")
	require.NoError(t, err)
	exec := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindSubmatch(unit)
	require.NotNil(t, exec)
	parses(t, "systemd", strings.Fields(string(exec[1])))

	script, err := os.ReadFile(deploy + "slurm/skein.sbatch")
	require.NoError(t, err)
	lines := regexp.MustCompile(`exec "\$skein" ((?:.*\\\n)*.*)`).FindAllSubmatch(script, -1)
	require.Len(t, lines, 2)
	for _, l := range lines {
		parses(t, "slurm", strings.Fields(strings.ReplaceAll(string(l[1]), "\\\n", " ")))
	}

	_, err = project.LoadClusterFile(deploy + "cluster.yaml")
	require.NoError(t, err)
}

// The topology of compose.yaml, each service a process, trains its run: any
// order of starting, addresses by name, keys made beforehand.
func TestComposeTopologyTrains(t *testing.T) {
	c := readCompose(t)
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	output(t, time.Minute, "cluster", "init", "--dir", keys)

	ports, held := map[string]string{}, map[string]net.Listener{} // held until their node starts
	for i := 1; i <= 3; i++ {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		name := fmt.Sprintf("replay-%d", i)
		ports[name] = ln.Addr().String()
		held[name] = ln
		defer ln.Close()
	}
	var procs []*exec.Cmd
	defer func() {
		for _, p := range procs {
			_ = p.Process.Signal(syscall.SIGTERM)
		}
		for _, p := range procs {
			_ = p.Wait()
		}
	}()
	here := func(service, name string, args []string) []string {
		args = append([]string(nil), args...)
		for i, a := range args {
			a = strings.ReplaceAll(a, "0.0.0.0:9400", "127.0.0.1:0")
			a = strings.ReplaceAll(a, "0.0.0.0:7400", ports[service])
			for n, addr := range ports {
				a = strings.ReplaceAll(a, n+":7400", addr)
			}
			for from, to := range map[string]string{"/var/lib/skein": filepath.Join(dir, name), "/tmp/skein": filepath.Join(dir, name), "/keys": keys, "/run.yaml": deploy + "docker/run.yaml"} {
				if rest, ok := strings.CutPrefix(a, from); ok && (rest == "" || rest[0] == '/') {
					a = to + rest
				}
			}
			args[i] = a
		}
		return args
	}
	var logs lockedBuffer
	start := func(service, name string, extra ...string) {
		cmd := skein(t, 4*time.Minute, append(here(service, name, c.Services[service].Command), extra...)...)
		cmd.Stderr = &logs
		require.NoError(t, cmd.Start())
		procs = append(procs, cmd)
	}
	// The founder comes last of all: everybody else waits for it.
	start("worker", "w1")
	start("worker", "w2")
	start("learner", "learner", "--set", "training.max_steps=2", "--set", "training.groups_per_step=2", "--set", "eval.every=0", "--set", "eval.tasks=4")
	for _, name := range []string{"replay-3", "replay-2", "replay-1"} {
		require.NoError(t, held[name].Close())
		start(name, name)
	}

	token, err := os.ReadFile(filepath.Join(keys, "token"))
	require.NoError(t, err)
	var st *project.Store
	require.Eventually(t, func() bool {
		st, err = project.OpenStore(t.Context(), project.StoreOptions{Join: ports["replay-1"], Token: strings.TrimSpace(string(token)), Log: (&globals{}).logger()})
		return err == nil
	}, time.Minute, pollEvery, "%v", &logs)
	defer st.Close()
	require.Eventually(t, func() bool {
		s, err := st.Status(t.Context(), "compose")
		return err == nil && s.Finished
	}, 3*time.Minute, pollEvery, "%v", &logs)
	require.Eventually(t, func() bool { // the run may be over before the last one has its vote
		cs, err := st.Cluster(t.Context())
		voters := map[string]string{}
		for _, n := range cs.Nodes {
			if n.Voter {
				voters[n.ID] = n.Addr
			}
		}
		return err == nil && maps.Equal(ports, voters)
	}, time.Minute, pollEvery, "%v", &logs)
}
