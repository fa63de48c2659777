/**
 * The layers of the project: which folders may import which. The linter checks imports against this table (see `rules.ts`), and the
 * architecture page shows it.
 */
import { dirname } from 'node:path';

/** A folder at the top, with what the architecture page says of it. */
interface Wing {
  /** Other wings that this one may import. */
  readonly imports: readonly string[];
  /** Content in a few sentences of Markdown. */
  readonly content: string;
  /** Program that its code runs in. */
  readonly runs: string;
}

const SHARED = ['base', 'api', 'kube'];

export const WINGS: Readonly<Record<string, Wing>> = {
  base: {
    imports: [],
    content:
      'Helpers that know neither Kubernetes nor VMs: errors, time, waits between tries, programs, atomic files, configuration files, mutex and pool.',
    runs: 'library',
  },
  api: {
    imports: ['base'],
    content:
      'The kinds, one zod schema each. TypeScript types and `crds/` come from it. Also the contract between operator and agent, and in `api/http/` the schemas of the HTTP API.',
    runs: 'library',
  },
  kube: {
    imports: ['base'],
    content:
      'Kubernetes client machinery that knows nothing of VMs: transport, watch cache, queue, read-your-own-writes, leader election, Events. `kube/ledprogram.ts` is the skeleton of a program whose replicas elect a leader. `kube/serving/` serves HTTPS and asks the API server for the rights of callers. `kube/certificates/` makes and reads certificates and their requests.',
    runs: 'library',
  },
  operator: {
    imports: SHARED,
    content:
      'Reconciles the kinds: VMs become Pods. Keeps slots and taints on hosts, approves certificates, writes status and metrics.',
    runs: 'a process; one replica leads, others stand by',
  },
  agent: {
    imports: SHARED,
    content: 'Makes a host a Node (a virtual kubelet) and runs the Pods bound to it as hypervisor processes.',
    runs: 'one process per host',
  },
  runners: {
    imports: SHARED,
    content:
      'Runners for the jobs of GitHub: RunnerSets become VMs with one job each. `runners/github/` speaks to GitHub. It is a program of its own, because it reaches the internet and has credentials for GitHub.',
    runs: 'a process, off by default; one replica leads, others stand by',
  },
  actions: {
    imports: SHARED,
    content:
      'The actions of users, each once: the HTTP API and the command do the same with the rights of the same caller.',
    runs: 'library',
  },
  server: {
    imports: [...SHARED, 'actions'],
    content:
      'The HTTP API. It sends the token of its caller to the API server, and does a few things itself after a SubjectAccessReview. `server/power/` is the power API, a port of its own: it uses `kube/serving/` without Fastify, because a GET there acts.',
    runs: 'a process; two replicas without shared state',
  },
  cli: {
    imports: [...SHARED, 'actions'],
    content: 'The command `berth`. It talks to the Kubernetes API with the kubeconfig of its user.',
    runs: 'a program of the user',
  },
  console: {
    imports: [...SHARED, 'actions'],
    content:
      'The page of the HTTP API for people: Preact, plain CSS. `console/model/` decides without a browser, `console/data/` reads, `console/views/` shows. It bundles only pure code of the other folders.',
    runs: 'a browser; the server serves its bundle',
  },
  hack: {
    imports: [...SHARED, 'actions', 'operator', 'agent', 'runners', 'server', 'cli', 'console'],
    content:
      'Programs for contributors. `hack/cluster/` is a control plane for the demo, the tests and the benchmark, with simulated hosts or with real nodes of a cluster.',
    runs: 'library and programs',
  },
  test: {
    imports: [...SHARED, 'actions', 'operator', 'agent', 'runners', 'server', 'cli', 'hack'],
    content:
      'Tests against real parts, and their worlds, wires and fixtures. Unit tests stand beside the code.',
    runs: 'tests',
  },
};

/**
 * Order of the folders and files inside a folder. `<` separates layers, the lowest stands first. A layer may import those before it. Folders
 * of one layer do not import each other, its files may. `.` means all files of the folder that are not named.
 */
export const ORDER: Readonly<Record<string, string>> = {
  api: 'v1alpha1 < http',
  'api/v1alpha1': 'reasons < .',
  kube: 'certificates < . < serving < ledprogram.ts',
  operator:
    'config < objects < tasks roles < image host < podbacked < vm < snapshot server imagecache imagestorage certificates emulator foreignpods < pool < .',
  'operator/server': 'drivers < . < demand',
  agent:
    'disks processes seed < console network < drivers images < tasks < pods node identity < kubelet < . < doctor < main.ts',
  'agent/drivers': '. < qemu emulator tart',
  'agent/images': 'oci < layouts < local < sources < .',
  'agent/kubelet': 'streams < .',
  'agent/kubelet/streams': '. < spdy < finish.test.ts',
  'agent/network': '. < nat',
  runners: 'config.ts < github < .',
  server:
    'config.ts < http < dialect callers < own < documentation.ts services.ts < images imagecache power vms console < .',
  console: 'model < data < views < .',
  cli: '. < objects < namespace.ts node.ts image.ts vmconfig.ts < vm imagecache login support < config.ts emulator.ts gitlab.ts pool.ts registry.ts rolebinding.ts secret.ts server.ts serviceaccount.ts program.ts main.ts',
  'hack/cluster': 'processes.ts < toolchain < providers < . < nodes < index.ts',
};

/** Helpers from above that unit tests may import, and files that put a program together. Copies of them would test nothing. */
const TEST_HELPERS =
  /^(?:test\/(?:support|fixtures|wires|worlds)\/|hack\/cluster\/authority\.ts$|operator\/watches\.ts$|server\/server\.ts$|cli\/(?:program|registry|serviceaccount|vm\/kind)\.ts$)/;
/** Condition of tests that the tools share with them. */
const SHARED_CONDITION = 'test/support/unless.ts';

/** Returns the layers of a folder: each a list of names. */
export function layersOf(folder: string): string[][] {
  return (ORDER[folder] ?? '')
    .split('<')
    .map((layer) => layer.split(' ').filter((name) => name !== ''))
    .filter((layer) => layer.length > 0);
}

/** Returns why file `from` may not import file `to`, or undefined if it may. Both are paths from the root of the project. */
export function findArrowUp(from: string, to: string): string | undefined {
  const [wing = '', other = ''] = [from, to].map((path) => path.split('/')[0]);
  if (isHelper(from, to)) {
    return undefined;
  }
  if (wing === other) {
    return findArrowInside(from, to);
  }
  const imports = WINGS[wing]?.imports;
  if (imports === undefined || WINGS[other] === undefined || imports.includes(other)) {
    return undefined;
  }
  const allowed = imports.map((name) => `${name}/`).join(', ');
  return `${wing}/ imports nothing of ours but ${allowed || 'its own files'}.`;
}

/** Returns whether `to` is a helper above `from` that it may use all the same. */
function isHelper(from: string, to: string): boolean {
  return from.endsWith('.test.ts')
    ? TEST_HELPERS.test(to)
    : to === SHARED_CONDITION && from.startsWith('hack/');
}

function findArrowInside(from: string, to: string): string | undefined {
  const folder = sharedFolder(from, to);
  const layers = layersOf(folder);
  if (layers.length === 0) {
    return undefined;
  }
  const [lower, upper] = [to, from].map((path) => findLayer(folder, path, layers));
  const isAllowed =
    lower !== undefined &&
    upper !== undefined &&
    (lower.level < upper.level || (lower.level === upper.level && lower.isFile && upper.isFile));
  return isAllowed ? undefined : `Imports inside ${folder}/ go down only: ${ORDER[folder]}.`;
}

/** Returns the innermost folder that contains both files. */
function sharedFolder(from: string, to: string): string {
  let folder = dirname(from);
  while (folder !== '.' && !to.startsWith(`${folder}/`)) {
    folder = dirname(folder);
  }
  return folder;
}

interface Place {
  level: number;
  isFile: boolean;
}

/** Returns the layer of a file in one of its folders. The result is undefined for a folder that no layer names. */
function findLayer(folder: string, path: string, layers: readonly string[][]): Place | undefined {
  const [name = '', ...rest] = path.slice(folder.length + 1).split('/');
  const isFile = rest.length === 0;
  const names = isFile ? [name, name.replace(/\.test\.ts$/, '.ts'), '.'] : [name];
  for (const each of names) {
    const level = layers.findIndex((layer) => layer.includes(each));
    if (level >= 0) {
      return { level, isFile };
    }
  }
  return undefined;
}
