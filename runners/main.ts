/** `node runners/main.ts [--config FILE] [--kubeconfig FILE]` starts the runners for GitHub. */
import '../base/heap.ts';
import { parseArgs } from 'node:util';
import { programLogger } from '../base/log.ts';
import { exitWith, runUntilSignal } from '../kube/program.ts';
import { loadConfig } from './config.ts';
import { Runners } from './runners.ts';

try {
  const { values } = parseArgs({ options: { config: { type: 'string' }, kubeconfig: { type: 'string' } } });
  const { config: file } = values;
  const config = loadConfig(file);
  const logger = programLogger({
    program: 'berth-runners',
    level: config.logLevel,
    levelFile: file === undefined ? undefined : { file, read: () => loadConfig(file).logLevel },
  });
  await runUntilSignal(
    logger,
    async (fail) => await Runners.start({ config, kubeconfigPath: values.kubeconfig, logger, onLost: fail }),
  );
} catch (error) {
  exitWith(error);
}
