/** `node server/main.ts [--config FILE] [--kubeconfig FILE]` starts the HTTP API. */
import '../base/heap.ts';
import { runProgram } from '../kube/program.ts';
import { loadConfig } from './config.ts';
import { startServer } from './server.ts';

await runProgram({
  name: 'berth-server',
  loadConfig,
  start: async ({ config, kubeconfigPath, logger }) => await startServer({ config, kubeconfigPath, logger }),
});
