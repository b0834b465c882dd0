package remote

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the protocol that a server speaks.
type Kind string

// The kinds of servers.
const (
	VLLM     Kind = "vllm"     // vLLM 0.10.2 or later
	Skein    Kind = "skein"    // skein serve
	OpenAI   Kind = "openai"   // vLLM's form of /v1/completions; no adapters
	LlamaCPP Kind = "llamacpp" // llama.cpp's server; adapters only from its start
)

var kinds = []Kind{VLLM, Skein, OpenAI, LlamaCPP}

// Config names a server and bounds what is asked of it.
type Config struct {
	Kind Kind
	URL  string // http or https, without /v1
	// Model is the base model's name there; "" = the one it serves.
	Model string
	// Key is sent as bearer token; "" = none. Never printed.
	Key string
	// Capacity is how many requests are sent at once.
	Capacity int
	// Price orders workers: dearer ones leave work to cheaper ones. Any unit; the
	// local engine costs 0.
	Price float64
	// Adapters is the folder that adapters are written to, AdaptersThere the same
	// folder as the server sees it ("" = equal).
	Adapters, AdaptersThere string
	// Timeout bounds one generation with its repetitions, AdapterTimeout one
	// loading of an adapter, ConnectTimeout one connection.
	Timeout, AdapterTimeout, ConnectTimeout time.Duration
	// Attempts is how often a request is sent before its failure counts.
	Attempts int
	Log      *slog.Logger // nil = nothing is logged
}

// DefaultConfig has everything but Kind and URL.
func DefaultConfig() Config {
	return Config{Capacity: 16, Timeout: 10 * time.Minute, AdapterTimeout: time.Minute, ConnectTimeout: 5 * time.Second, Attempts: 5}
}

// ParseConfig reads KIND=URL[,key=value…], as --engine takes it. Keys: model,
// capacity, price, adapters, adapters-there, timeout, attempts.
func ParseConfig(s string) (Config, error) {
	c := DefaultConfig()
	head, rest, _ := strings.Cut(s, ",")
	kind, base, ok := strings.Cut(head, "=")
	if !ok {
		return c, fmt.Errorf("engine %q: write it as KIND=URL, with KIND one of %s", s, kindList())
	}
	c.Kind, c.URL = Kind(kind), strings.TrimRight(base, "/")
	var errs []error
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(part, "=")
		var err error
		switch {
		case !ok:
			err = errors.New("write it as key=value")
		case key == "model":
			c.Model = value
		case key == "capacity":
			c.Capacity, err = strconv.Atoi(value)
		case key == "price":
			c.Price, err = strconv.ParseFloat(value, 64)
		case key == "adapters":
			c.Adapters = value
		case key == "adapters-there":
			c.AdaptersThere = value
		case key == "timeout":
			c.Timeout, err = time.ParseDuration(value)
		case key == "attempts":
			c.Attempts, err = strconv.Atoi(value)
		default:
			err = errors.New("unknown key; have model, capacity, price, adapters, adapters-there, timeout, attempts")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("engine: %q: %w", part, err))
		}
	}
	return c, errors.Join(append(errs, c.Validate())...)
}

func kindList() string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("engine: "+format, a...)) }
	if !slices.Contains(kinds, c.Kind) {
		bad("kind %q: use one of %s", c.Kind, kindList())
	}
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		bad("URL %q: write it as http://HOST:PORT", c.URL)
	} else if u.User != nil {
		bad("URL of %s: it holds a user name: give a key by --engine-key-file", u.Host)
	} else if u.RawQuery != "" || u.Fragment != "" {
		bad("URL %q: leave out what follows ? or #", c.URL)
	} else if strings.HasSuffix(u.Path, "/v1") {
		bad("URL %q: leave out /v1", c.URL)
	}
	if c.Capacity < 1 || c.Capacity > 65536 {
		bad("capacity is %d; give 1 to 65536 parallel requests", c.Capacity)
	}
	if c.Price < 0 || math.IsInf(c.Price, 0) || math.IsNaN(c.Price) {
		bad("price is %v; give 0 or more", c.Price)
	}
	if c.Attempts < 1 {
		bad("attempts is %d; give at least 1", c.Attempts)
	}
	for _, t := range []struct {
		name  string
		value time.Duration
	}{{"timeout", c.Timeout}, {"adapter timeout", c.AdapterTimeout}, {"connect timeout", c.ConnectTimeout}} {
		if t.value <= 0 {
			bad("%s is %v; give a positive time", t.name, t.value)
		}
	}
	if c.AdaptersThere != "" && c.Adapters == "" {
		bad("adapters-there is %q without adapters: name the folder on this machine too", c.AdaptersThere)
	}
	return errors.Join(errs...)
}

// String names the server without its key.
func (c Config) String() string { return string(c.Kind) + "=" + c.URL }
