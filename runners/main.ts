/** `node runners/main.ts [--config FILE] [--kubeconfig FILE]` starts the runners for GitHub. */
import '../base/threads.ts';
import '../base/heap.ts';
import { runProgram } from '../kube/program.ts';
import { loadConfig } from './config.ts';
import { startRunners } from './runners.ts';

await runProgram({
  name: 'berth-runners',
  loadConfig,
  start: async ({ fail, ...start }) => await startRunners({ ...start, onLost: fail }),
});
