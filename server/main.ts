/** `node server/main.ts [--config FILE] [--kubeconfig FILE]` starts the HTTP API. */
import '../base/heap.ts';
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { exitWith, runUntilSignal } from '../kube/program.ts';
import { loadConfig } from './config.ts';
import { startServer } from './server.ts';

try {
  const { values } = parseArgs({ options: { config: { type: 'string' }, kubeconfig: { type: 'string' } } });
  const config = loadConfig(values.config);
  const logger = pino({ name: 'berth-server', level: config.logLevel });
  await runUntilSignal(
    logger,
    async () => await startServer({ config, kubeconfigPath: values.kubeconfig, logger }),
  );
} catch (error) {
  exitWith(error);
}
