package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/model/xla"
	"github.com/skein-rl/skein/replay"
)

// States of a Check.
const (
	CheckOK     = "ok"
	CheckNote   = "note" // works, but worth knowing
	CheckFailed = "fail"
)

// Check is one thing the doctor looked at.
type Check struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Doctor tries what a run needs on this machine: kernels, embedded model, XLA
// plugin, disk, sockets, clock. It changes nothing.
func Doctor(ctx context.Context, dir string) []Check {
	return []Check{
		checkCPU(), checkMemory(), checkDisk(dir), checkModel(), checkXLA(), checkSockets(ctx), checkClock(),
	}
}

func checkCPU() Check {
	kernels := "portable Go (slow)"
	switch {
	case cpu.X86.HasAVX512F:
		kernels = "AVX-512"
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		kernels = "AVX2"
	}
	c := Check{Name: "cpu", State: CheckOK, Detail: fmt.Sprintf("%d cores, %s/%s, pure-Go backend uses %s kernels", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, kernels)}
	if strings.HasPrefix(kernels, "portable") {
		c.State, c.Remedy = CheckNote, "use backend xla:cpu for anything but the embedded model"
	}
	return c
}

func checkMemory() Check {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return Check{"memory", CheckNote, err.Error(), ""}
	}
	total := float64(s.Totalram) * float64(s.Unit) / (1 << 30)
	c := Check{Name: "memory", State: CheckOK, Detail: fmt.Sprintf("%.1f GiB", total)}
	if total < 2 {
		c.State, c.Remedy = CheckNote, "the embedded model runs in 500 MB; larger ones need more"
	}
	return c
}

func checkDisk(dir string) Check {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Check{"disk", CheckFailed, fmt.Sprintf("%s: %v", dir, err), "choose a folder that exists with --dir"}
	}
	free, mark := s.Bavail*uint64(s.Bsize), replay.DefaultLocalOptions().MinFreeBytes
	c := Check{Name: "disk", State: CheckOK, Detail: fmt.Sprintf("%.1f GiB free under %s; appends are refused below %.1f GiB", float64(free)/(1<<30), dir, float64(mark)/(1<<30))}
	if free < 2*mark {
		c.State, c.Remedy = CheckFailed, "free some space or use another disk"
	}
	return c
}

func checkModel() Check {
	m, err := tiny.Open()
	if err != nil {
		return Check{"embedded model", CheckFailed, err.Error(), "this binary is broken: build it again"}
	}
	defer m.Close()
	return Check{Name: "embedded model", State: CheckOK, Detail: fmt.Sprintf("%.2f M parameters, %s", float64(m.Config.NumParams())/1e6, m.Digest)}
}

func checkXLA() Check {
	m, err := tiny.Open()
	if err != nil {
		return Check{"xla:cpu", CheckFailed, err.Error(), ""}
	}
	defer m.Close()
	b, err := xla.Open(m, xla.Options{Device: "cpu", Logger: slog.New(slog.DiscardHandler)})
	switch {
	case errors.Is(err, xla.ErrNotBuilt):
		return Check{"xla:cpu", CheckNote, "this binary was built without it; the pure-Go backend works", "make build with a C compiler (CGO_ENABLED=1)"}
	case err != nil:
		return Check{"xla:cpu", CheckNote, err.Error(), "make plugin, and set PJRT_PLUGIN_LIBRARY_PATH to the folder it names"}
	}
	defer b.Close()
	if _, err := b.NewTrainer(model.TrainerConfig{LoRA: DefaultConfig().LoRA}); err != nil {
		return Check{"xla:cpu", CheckFailed, err.Error(), "the plugin does not match: run make plugin again"}
	}
	return Check{Name: "xla:cpu", State: CheckOK, Detail: "the plugin in " + os.Getenv("PJRT_PLUGIN_LIBRARY_PATH") + " answers"}
}

func checkSockets(ctx context.Context) Check {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return Check{"sockets", CheckFailed, err.Error(), "skein up and node need to listen on an address; allow it"}
	}
	defer l.Close()
	return Check{Name: "sockets", State: CheckOK, Detail: "can listen"}
}

// checkClock notices a clock that makes certificates invalid.
func checkClock() Check {
	now := time.Now()
	c := Check{Name: "clock", State: CheckOK, Detail: now.UTC().Format(time.RFC3339)}
	if now.Year() < 2025 {
		c.State, c.Remedy = CheckFailed, "set the clock: certificates of the cluster are not valid yet"
	}
	return c
}
