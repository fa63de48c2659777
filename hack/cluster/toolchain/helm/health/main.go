// Command health tells how clients of Kubernetes read the health of objects: the library of Helm and Flux (kstatus), and a health script of
// Argo CD in the interpreter that Argo CD uses. It reads a JSON array of objects from its input, and writes a JSON array of verdicts.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Verdict is the health of one object, by kstatus and by the script.
type Verdict struct {
	Kstatus  string `json:"kstatus"`
	Message  string `json:"message"`
	Script   string `json:"script"`
	Reported string `json:"reported"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(scriptFile string) error {
	script, err := os.ReadFile(scriptFile)
	if err != nil {
		return err
	}
	var objects []map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		return err
	}
	verdicts := []Verdict{}
	for _, object := range objects {
		verdict, err := judge(object, string(script))
		if err != nil {
			return err
		}
		verdicts = append(verdicts, verdict)
	}
	return json.NewEncoder(os.Stdout).Encode(verdicts)
}

func judge(object map[string]any, script string) (Verdict, error) {
	// The library compares generations as int64, so numbers must not be float64.
	whole, _ := json.Marshal(object)
	read := &unstructured.Unstructured{}
	if err := read.UnmarshalJSON(whole); err != nil {
		return Verdict{}, err
	}
	result, err := status.Compute(read)
	if err != nil {
		return Verdict{}, err
	}
	machine := lua.NewState()
	defer machine.Close()
	machine.SetGlobal("obj", valueOf(machine, object))
	if err := machine.DoString(script); err != nil {
		return Verdict{}, err
	}
	health, isTable := machine.Get(-1).(*lua.LTable)
	if !isTable {
		return Verdict{}, fmt.Errorf("the script returned no table for %s %s", read.GetKind(), read.GetName())
	}
	return Verdict{
		Kstatus:  result.Status.String(),
		Message:  result.Message,
		Script:   health.RawGetString("status").String(),
		Reported: health.RawGetString("message").String(),
	}, nil
}

func valueOf(machine *lua.LState, value any) lua.LValue {
	switch typed := value.(type) {
	case map[string]any:
		table := machine.NewTable()
		for key, field := range typed {
			table.RawSetString(key, valueOf(machine, field))
		}
		return table
	case []any:
		table := machine.NewTable()
		for _, item := range typed {
			table.Append(valueOf(machine, item))
		}
		return table
	case string:
		return lua.LString(typed)
	case float64:
		return lua.LNumber(typed)
	case bool:
		return lua.LBool(typed)
	default:
		return lua.LNil
	}
}
