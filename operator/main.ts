/**
 * `node operator/main.ts [--config FILE] [--kubeconfig FILE]` starts the operator.
 * `node operator/main.ts uninstall …` removes the objects that operator and agents wrote: see uninstall.ts.
 */
import '../base/heap.ts';
import { setFlagsFromString } from 'node:v8';
import { programLogger } from '../base/log.ts';
import { loadConfig } from './config/config.ts';
import { KubeClient } from '../kube/client.ts';
import { loadConnection } from '../kube/credentials.ts';
import { createMetrics } from '../kube/metrics.ts';
import { exitWith, runProgram } from '../kube/program.ts';
import { Transport } from '../kube/transport.ts';
import { startOperator } from './operator.ts';
import { readUninstallOptions, RefusedError, uninstall } from './uninstall.ts';

// This flag makes V8 mark garbage in one pause. Without the flag, the program continues to allocate memory while V8 marks: with 300 VMs,
// the heap grew to 60 MB instead of 35 MB. The pause disturbs nobody, because it is short: 0.13 s for a heap of 40 MB on a busy machine.
setFlagsFromString('--no-incremental-marking');
// TurboFan, the second optimizing compiler of V8, is switched off, because it needs 4 MB of memory. Without it, the CPU time for 500 VMs
// was the same. TurboFan stays on if Maglev, the first optimizing compiler, is not built in.
if (Number(Reflect.get(process.config.variables, 'v8_enable_maglev')) === 1) {
  setFlagsFromString('--no-turbofan');
}

async function runUninstall(args: readonly string[]): Promise<void> {
  const options = readUninstallOptions(args);
  const transport = new Transport(await loadConnection(), {
    metrics: createMetrics(),
    userAgent: 'berth-uninstall',
  });
  try {
    await uninstall(new KubeClient(transport), options, programLogger({ program: 'berth-uninstall' }));
  } finally {
    await transport.close();
  }
}

const [, , command, ...rest] = process.argv;
if (command === 'uninstall') {
  try {
    await runUninstall(rest);
  } catch (error) {
    exitWith(error, (reason) => reason instanceof RefusedError);
  }
} else {
  await runProgram({
    name: 'berth-operator',
    loadConfig,
    start: async ({ fail, ...start }) =>
      await startOperator({ ...start, podName: process.env['BERTH_POD_NAME'], onLost: fail }),
  });
}
