/** Measures the speed of `kubectl port-forward`, compared with a reserved port for the same port of the same guest. */
import { freePort } from '../../hack/cluster/ports.ts';
import { tell } from '../worlds/qemuguest.ts';
import { World } from '../worlds/vm.ts';
import { StartedProgram } from '../wires/startedprogram.ts';
import { format } from './report.ts';
import { median, type Verdict } from './verdicts.ts';

const MEBIBYTE = 1024 * 1024;
/** Size of the data. An emulated guest takes some seconds for it, so the start of the connection has no weight. */
const TRANSFER_MEBIBYTES = 16;
/** Least share of a reserved port's speed. */
const TARGET_SHARE = 0.5;

/** Speeds in MiB a second, one for each round. */
export interface StreamSpeeds {
  reserved: number[];
  forwarded: number[];
}

/** Reads from one guest by both ways in turns, so that other load of the machine affects both. */
export async function measureStreams(rounds: number): Promise<StreamSpeeds> {
  await using world = await World.start({
    name: 'bench-streams',
    architecture: 'amd64',
    hosts: { host: '127.0.0.1' },
  });
  const reserved = await freePort();
  await world.makeVM('x', { ports: [`${reserved}:80`], readiness: { type: 'Port', port: 80 } });
  await world.waitForCondition('Ready', 'x');
  const { kubectlPath, kubeconfig } = world.cluster;
  const args = ['--kubeconfig', kubeconfig, '-n', world.vms.namespace, 'port-forward', 'pod/x', ':80'];
  const forward = new StartedProgram(kubectlPath, args);
  try {
    const [, port] = await forward.prints(/127\.0\.0\.1:(\d+) -> 80/);
    const speeds: StreamSpeeds = { reserved: [], forwarded: [] };
    // The first answer of the guest loads its programs, so it is not counted.
    await tell(reserved, 'zeros=1');
    for (let round = 0; round < rounds; round += 1) {
      speeds.reserved.push(await speedOf(reserved));
      speeds.forwarded.push(await speedOf(Number(port)));
    }
    return speeds;
  } finally {
    forward.kill();
  }
}

/**
 * Reads zeros from the guest. Returns MiB a second. @throws Error when bytes are missing.
 */
async function speedOf(port: number): Promise<number> {
  const began = performance.now();
  const response = await fetch(`http://127.0.0.1:${port}/cgi-bin/do?zeros=${TRANSFER_MEBIBYTES}`);
  let bytes = 0;
  for await (const piece of response.body ?? []) {
    bytes += piece.length;
  }
  if (bytes !== TRANSFER_MEBIBYTES * MEBIBYTE) {
    throw new Error(`port ${port} gave ${bytes} bytes of ${TRANSFER_MEBIBYTES} MiB`);
  }
  return TRANSFER_MEBIBYTES / ((performance.now() - began) / 1000);
}

export function streamsTable({ reserved, forwarded }: StreamSpeeds): string {
  return format([
    [`${TRANSFER_MEBIBYTES} MiB from a guest, median of ${reserved.length}`, 'MiB a second'],
    ['reserved port', median(reserved).toFixed(1)],
    ['kubectl port-forward', median(forwarded).toFixed(1)],
  ]);
}

export function streamsVerdicts({ reserved, forwarded }: StreamSpeeds): Verdict[] {
  const share = median(forwarded) / median(reserved);
  return [
    {
      claim: 'streams: speed of port-forward',
      measured: `${Math.round(share * 100)} % of a reserved port`,
      target: `at least ${TARGET_SHARE * 100} %`,
      reached: share >= TARGET_SHARE,
    },
  ];
}
