//go:build xla

package xla

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/gomlx/go-xla/pkg/pjrt"
	xdtypes "github.com/gomlx/go-xla/pkg/types/dtypes"
	gomlx "github.com/gomlx/gomlx/backends/xla"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/shapes"
)

// device is one PJRT client: GoMLX's and ours, so that both share buffers.
type device struct {
	backend *gomlx.Backend
	client  *pjrt.Client
	log     *slog.Logger
	name    string // cpu, cuda, ...
	elem    string // f32 or bf16: weights, caches and operands of products
}

func openDevice(o Options) (*device, error) {
	file, err := findPlugin(o.Plugin, o.Device)
	if err != nil {
		return nil, err
	}
	defer limitThreads(o.Threads)()
	gomlx.EnableAutoInstall(false)
	var options pjrt.NamedValuesMap
	if o.Device == "cpu" {
		options = pjrt.NamedValuesMap{"cpu_device_count": int64(1)}
	}
	b, err := gomlx.NewWithOptions(file, options)
	if err != nil {
		return nil, fmt.Errorf("xla: open device %q with plugin %s: %w", o.Device, file, err)
	}
	// GoMLX doesn't show its client; any buffer does.
	probe, err := b.BufferFromFlatData(0, []float32{0}, shapes.Make(dtypes.Float32, 1))
	if err != nil {
		b.Finalize()
		return nil, fmt.Errorf("xla: first transfer to device %q: %w", o.Device, err)
	}
	buf := probe.(*pjrt.Buffer)
	d := &device{backend: b, client: buf.Client(), log: o.Logger, name: o.Device, elem: o.Dtype}
	return d, buf.Destroy()
}

// threadsMu guards the environment while a client reads it.
var threadsMu sync.Mutex

// limitThreads sets the variable that a new CPU client sizes its thread pool by;
// the returned function restores it.
func limitThreads(n int) func() {
	if n == 0 {
		return func() {}
	}
	threadsMu.Lock()
	old, was := os.LookupEnv("NPROC")
	// Setenv fails only on a malformed name or value.
	_ = os.Setenv("NPROC", strconv.Itoa(n))
	return func() {
		if was {
			_ = os.Setenv("NPROC", old)
		} else {
			_ = os.Unsetenv("NPROC")
		}
		threadsMu.Unlock()
	}
}

// findPlugin resolves the plugin's file. where is a file, a list of folders, or
// empty for the environment's.
func findPlugin(where, dev string) (string, error) {
	source := fmt.Sprintf("plugin %q", where)
	if where == "" {
		where = os.Getenv(PluginEnv)
		source = PluginEnv
		if where == "" {
			return "", fmt.Errorf("%w for device %q: %s is not set; run make plugin and set it to the folder of pjrt_c_api_%s_plugin.so",
				ErrNoPlugin, dev, PluginEnv, dev)
		}
	}
	patterns := []string{"pjrt_c_api_" + dev + "_plugin.so", "pjrt_c_api_" + dev + "_plugin.dylib", "pjrt[-_]plugin[-_]" + dev + ".so", "xla_" + dev + "*_plugin.so"}
	for dir := range strings.SplitSeq(where, ":") {
		if dir == "" {
			continue
		}
		if fi, err := os.Stat(dir); err == nil && !fi.IsDir() {
			return filepath.Abs(dir)
		}
		for _, p := range patterns {
			if found, _ := filepath.Glob(filepath.Join(dir, p)); len(found) > 0 {
				return filepath.Abs(found[0])
			}
		}
	}
	return "", fmt.Errorf("%w for device %q: %s=%s has no pjrt_c_api_%s_plugin.so; run make plugin, or point %s at a folder that has it",
		ErrNoPlugin, dev, source, where, dev, PluginEnv)
}

// program is a compiled StableHLO module.
type program struct {
	name   string
	exec   *pjrt.LoadedExecutable
	donate []int
}

// compile builds the emitter's module; aliased arguments are donated.
func (d *device) compile(name string, e *emitter, results []value) (*program, error) {
	start := time.Now()
	exec, err := d.client.Compile().WithStableHLO(e.module(results)).Done()
	if err != nil {
		return nil, fmt.Errorf("xla: compile %s: %w", name, err)
	}
	p := &program{name: name, exec: exec}
	for i := range e.args {
		if _, ok := e.alias[i]; ok {
			p.donate = append(p.donate, i)
		}
	}
	d.log.Debug("xla: compiled", "program", name, "device", d.name, "duration", time.Since(start))
	return p, nil
}

func (d *device) emitter() *emitter {
	return &emitter{alias: map[int]int{}, exactF32: d.name != "cpu"}
}

// run executes and returns the results; donated arguments are gone afterwards.
func (p *program) run(args []*pjrt.Buffer) ([]*pjrt.Buffer, error) {
	out, err := p.exec.Execute(args...).Donate(p.donate...).Done()
	if err != nil {
		return nil, fmt.Errorf("xla: run %s: %w", p.name, err)
	}
	return out, nil
}

func (p *program) close() error {
	return p.exec.Destroy()
}

var elemTypes = map[string]xdtypes.DType{
	"f32": xdtypes.Float32, "bf16": xdtypes.BFloat16, "i32": xdtypes.Int32, "ui32": xdtypes.Uint32, "i1": xdtypes.Bool, "f64": xdtypes.Float64,
}

func elemSize(elem string) int {
	switch elem {
	case "f64":
		return 8
	case "bf16":
		return 2
	case "i1":
		return 1
	}
	return 4
}

func count(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// put moves bytes to the device.
func (d *device) put(raw []byte, elem string, dims ...int) (*pjrt.Buffer, error) {
	if want := count(dims) * elemSize(elem); len(raw) != want {
		return nil, fmt.Errorf("xla: transfer of %d bytes as %s: %d expected", len(raw), tensorType(elem, dims), want)
	}
	b, err := d.client.BufferFromHost().FromRawData(raw, elemTypes[elem], dims).Done()
	if err != nil {
		return nil, fmt.Errorf("xla: transfer %s: %w", tensorType(elem, dims), err)
	}
	return b, nil
}

func bytesOf[T any](x []T) []byte {
	var z T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(z)))
}

func (d *device) putF32(x []float32, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "f32", dims...)
}

func (d *device) putI32(x []int32, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "i32", dims...)
}

func (d *device) putF64(x []float64, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "f64", dims...)
}

func (d *device) putBool(x []bool, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "i1", dims...)
}

// putElem stores f32 values in the device's compute type.
func (d *device) putElem(x []float32, dims ...int) (*pjrt.Buffer, error) {
	if d.elem == "f32" {
		return d.putF32(x, dims...)
	}
	h := make([]uint16, len(x))
	for i, v := range x {
		h[i] = bf16(v)
	}
	return d.put(bytesOf(h), "bf16", dims...)
}

// get reads a 32-bit buffer of known length back.
func get[T int32 | uint32 | float32](b *pjrt.Buffer, n int) ([]T, error) {
	out := make([]T, n)
	if n == 0 {
		return out, nil
	}
	if err := b.ToHost(bytesOf(out)); err != nil {
		return nil, fmt.Errorf("xla: read back: %w", err)
	}
	return out, nil
}

// free destroys buffers early: the collector doesn't see their size.
func free(bufs ...*pjrt.Buffer) {
	for _, b := range bufs {
		if b != nil {
			// A failed destroy leaves nothing to do: the client frees the rest.
			_ = b.Destroy()
		}
	}
}
