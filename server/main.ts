/** `node server/main.ts [--config FILE] [--kubeconfig FILE]` starts the HTTP API. */
import '../base/heap.ts';
import { parseArgs } from 'node:util';
import { programLogger } from '../base/log.ts';
import { exitWith, runUntilSignal } from '../kube/program.ts';
import { loadConfig } from './config.ts';
import { startServer } from './server.ts';

try {
  const { values } = parseArgs({ options: { config: { type: 'string' }, kubeconfig: { type: 'string' } } });
  const { config: file } = values;
  const config = loadConfig(file);
  const logger = programLogger({
    program: 'berth-server',
    level: config.logLevel,
    levelFile: file === undefined ? undefined : { file, read: () => loadConfig(file).logLevel },
  });
  await runUntilSignal(
    logger,
    async () => await startServer({ config, kubeconfigPath: values.kubeconfig, logger }),
  );
} catch (error) {
  exitWith(error);
}
