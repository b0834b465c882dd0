package project

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// ClusterFile describes a static fleet: which machine plays which roles. The
// same file lies on every machine; skein node --cluster FILE plays the part of
// the one it runs on.
type ClusterFile struct {
	// Authority is the folder made by skein cluster init: on replay machines
	// whole, on the others its file token is enough.
	Authority string `yaml:"authority"`
	// Dir, Port and Metrics are those of nodes that name none. Metrics is
	// HOST:PORT, "" = not served.
	Dir     string        `yaml:"dir"`
	Port    int           `yaml:"port"`
	Metrics string        `yaml:"metrics"`
	Nodes   []ClusterNode `yaml:"nodes"`
}

// ClusterNode is one process of a fleet.
type ClusterNode struct {
	ID    string   `yaml:"id"`
	Host  string   `yaml:"host"` // name or address by which others reach the machine
	Roles []string `yaml:"roles"`
	Port  int      `yaml:"port"` // of a replay node
	// Listen is the interface a replay node binds; "" = host.
	Listen  string   `yaml:"listen"`
	Dir     string   `yaml:"dir"`
	Metrics string   `yaml:"metrics"`
	Config  string   `yaml:"config"` // of the run that a learner starts
	Set     []string `yaml:"set"`    // keys of it, as --set
	Tenant  string   `yaml:"tenant"` // of its worker and learner, as --tenant
	// Shard of a replay node; "" = the first group, the root. Further shards are
	// registered once with skein cluster shard add.
	Shard string `yaml:"shard"`
	// Engine and EngineKeyFile are --engine and --engine-key-file of a worker.
	Engine        string `yaml:"engine"`
	EngineKeyFile string `yaml:"engine_key_file"`
}

// Defaults of a cluster file.
const (
	clusterDir  = "/var/lib/skein"
	clusterPort = 7400
)

// LoadClusterFile reads a cluster file and reports every problem at once.
func LoadClusterFile(path string) (ClusterFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return ClusterFile{}, fmt.Errorf("--cluster: %w", err)
	}
	f, err := parseClusterFile(text)
	if err != nil {
		return ClusterFile{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func parseClusterFile(text []byte) (ClusterFile, error) {
	f := ClusterFile{Dir: clusterDir, Port: clusterPort}
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return f, err
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return f, errors.New("a cluster file is a mapping with the key nodes")
	}
	problems := checkTree(doc.Content[0], reflect.TypeFor[ClusterFile](), "")
	if err := doc.Content[0].Decode(&f); err != nil {
		problems = append(problems, err)
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if n.Port == 0 {
			n.Port = f.Port
		}
		if n.Dir == "" {
			n.Dir = f.Dir
		}
		if n.Metrics == "" {
			n.Metrics = f.Metrics
		}
	}
	return f, errors.Join(append(problems, f.validate())...)
}

func (f ClusterFile) validate() error {
	var errs []error
	bad := func(at, format string, a ...any) { errs = append(errs, fmt.Errorf(at+": "+format, a...)) }
	if f.Authority == "" {
		bad("authority", `"": make one with skein cluster init --dir DIR and name the folder`)
	}
	if len(f.Nodes) == 0 {
		bad("nodes", "none: list the fleet's processes")
	}
	ids, ports := map[string]bool{}, map[string]string{}
	replays := map[string]int{} // by shard
	for i, n := range f.Nodes {
		at := fmt.Sprintf("nodes[%d]", i)
		if n.ID == "" || ids[n.ID] {
			bad(at+".id", "%q: give every process an id of its own", n.ID)
		}
		ids[n.ID] = true
		if n.Port < 1 || n.Port > 65535 {
			bad(at+".port", "%d: use 1 to 65535", n.Port)
		}
		if len(n.Roles) == 0 {
			bad(at+".roles", "none: use replay, worker or learner")
		}
		for _, r := range n.Roles {
			if !slices.Contains([]string{cluster.RoleReplay, cluster.RoleWorker, cluster.RoleLearner}, r) {
				bad(at+".roles", "%q: use replay, worker or learner", r)
			}
		}
		if n.Config != "" && !slices.Contains(n.Roles, cluster.RoleLearner) {
			bad(at+".config", "%q: a learner starts a run, %s is none: move it there", n.Config, n.ID)
		}
		if n.Shard != "" {
			if err := replay.CheckShard(n.Shard); err != nil || n.Shard == replay.RootShard {
				bad(at+".shard", "%q: use 1 to 31 lower-case letters, digits and '-'; leave it out for the first group", n.Shard)
			} else if !slices.Contains(n.Roles, cluster.RoleReplay) {
				bad(at+".shard", "%q: replay nodes are of a shard, %s is none", n.Shard, n.ID)
			}
		}
		if n.Engine != "" && !slices.Contains(n.Roles, cluster.RoleWorker) {
			bad(at+".engine", "%q: only workers generate, %s is none: move it to one", n.Engine, n.ID)
		}
		if !slices.Contains(n.Roles, cluster.RoleReplay) {
			continue
		}
		replays[n.Shard]++
		if n.Host == "" {
			bad(at+".host", `"": a replay node needs the name or address by which others reach it`)
		}
		if other, taken := ports[n.address()]; taken {
			bad(at+".port", "%s is that of %s too", n.address(), other)
		}
		ports[n.address()] = n.ID
	}
	if len(f.Nodes) > 0 && replays[""] == 0 {
		bad("nodes", "no replay node of the first group: list 1, 3 or 5 without the key shard")
	}
	for _, shard := range slices.Sorted(maps.Keys(replays)) {
		if n := replays[shard]; n > 1 && n%2 == 0 {
			of := ""
			if shard != "" {
				of = " of shard " + shard
			}
			bad("nodes", "%d replay nodes%s: use 1, 3 or 5; an even one adds a copy and no safety", n, of)
		}
	}
	return errors.Join(errs...)
}

func (n ClusterNode) address() string { return net.JoinHostPort(n.Host, strconv.Itoa(n.Port)) }

// Addresses are those of a shard's replay nodes ("" = the first group).
func (f ClusterFile) Addresses(shard string) (out []string) {
	for _, n := range f.Nodes {
		if n.Shard == shard && slices.Contains(n.Roles, cluster.RoleReplay) {
			out = append(out, n.address())
		}
	}
	return out
}

// Node picks the process to be: by id, or "" by the machine's name, which must
// be the id or the host of exactly one.
func (f ClusterFile) Node(id, hostname string) (ClusterNode, error) {
	var found []ClusterNode
	var all []string
	for _, n := range f.Nodes {
		all = append(all, n.ID)
		if n.ID == id || id == "" && (n.ID == hostname || n.Host == hostname) {
			found = append(found, n)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case id != "":
		return ClusterNode{}, fmt.Errorf("--id %q: the cluster file has %s", id, strings.Join(all, ", "))
	}
	return ClusterNode{}, fmt.Errorf("%d nodes of the cluster file are of this machine (%s): say which with --id: %s", len(found), hostname, strings.Join(all, ", "))
}

// Options are what RunNode needs to be a node of the file.
func (f ClusterFile) Options(n ClusterNode) NodeOptions {
	o := NodeOptions{Roles: n.Roles, Dir: n.Dir, ID: n.ID, Join: f.Addresses(n.Shard), Authority: f.Authority, Metrics: n.Metrics, Tenant: n.Tenant, Shard: n.Shard}
	if slices.Contains(n.Roles, cluster.RoleReplay) {
		bind := n.Host
		if n.Listen != "" {
			bind = n.Listen
		}
		o.Listen, o.Advertise = net.JoinHostPort(bind, strconv.Itoa(n.Port)), n.address()
		for _, first := range f.Nodes {
			if first.Shard == n.Shard && slices.Contains(first.Roles, cluster.RoleReplay) {
				o.Founder = first.ID
				break
			}
		}
	}
	return o
}
