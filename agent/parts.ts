/** Creates the agent's parts that run machines on this host. The configuration determines these parts. */
import { join } from 'node:path';
import type { Logger } from 'pino';
import { Proxies } from '../base/proxy.ts';
import { createMetrics } from '../kube/metrics.ts';
import type { HostParts } from './agent.ts';
import { type AgentConfig, portRules } from './config.ts';
import { EmulatorDriver } from './drivers/emulator/driver.ts';
import { QemuDriver } from './drivers/qemu/driver.ts';
import { HostImageStore } from './images/store.ts';
import { Publisher } from './images/publisher.ts';
import { seedPages } from './seed/seed.ts';
import { RecordStore } from './pods/records.ts';
import { hostFile, ownRoot } from './processes/ownroot.ts';
import { hypervisorUsers, machineUsers } from './processes/users.ts';
import { createNetwork } from './networkdriver.ts';
import { nativeArchitecture } from './node/facts.ts';

export async function createParts(config: AgentConfig, logger: Logger): Promise<HostParts> {
  const { dataDirectory, architecture } = config;
  const metrics = createMetrics();
  const records = new RecordStore(join(dataDirectory, 'pods'));
  const users = await machineUsers(config.machines.users, records.list(), logger);
  const proxies = new Proxies(process.env);
  if (proxies.describe().length > 0) {
    logger.info(
      { proxies: proxies.describe() },
      'Registries and web servers of images are reached through a proxy',
    );
  }
  const images = await HostImageStore.open({
    dataDirectory,
    architecture: architecture ?? nativeArchitecture(),
    ...config.images,
    proxies,
    clusterCIDRs: config.clusterCIDRs,
    ownAddresses: [config.address],
    reader: users?.reader,
    metrics,
    logger: logger.child({ part: 'images' }),
  });
  const log = logger.child({ part: 'qemu' });
  const machineRoot = await ownRoot({ dataDirectory, logger: log });
  const publisher = new Publisher({
    registries: images.registries,
    storageFolder: config.images.storageFolder,
  });
  // The start does not wait for this folder, because its file server can be down. Each write to the folder protects the folder again.
  publisher.protectFolder().catch((error: unknown) => {
    logger.error({ err: error }, 'The mode of the folder of the image storage could not be set');
  });
  return {
    metrics,
    users,
    records,
    drivers: [
      new QemuDriver({
        dataDirectory,
        architecture,
        logger: log,
        readers: users?.reader.gid,
        ownRoot: machineRoot,
      }),
    ],
    emulators: new EmulatorDriver({
      dataDirectory,
      sdk: config.emulator?.sdk,
      program: config.emulator?.program,
      architecture,
      logger: logger.child({ part: 'emulator' }),
      ownRoot: machineRoot,
    }),
    images,
    publisher,
    network: createNetwork(config.network, {
      dataDirectory,
      nodeAddress: config.address,
      ports: portRules(config),
      clusterCIDRs: config.clusterCIDRs,
      metadata: seedPages(join(dataDirectory, 'machines')),
      machineUsers:
        process.getuid?.() === 0 ? hypervisorUsers(config.machines.users, records.list()) : undefined,
      resolvConf: machineRoot === undefined ? undefined : await hostFile('/etc/resolv.conf'),
      logger: logger.child({ part: 'network' }),
    }),
  };
}
