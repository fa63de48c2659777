import { execFileSync } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Command } from 'commander';
import { expect, it, vi } from 'vitest';
import {
  type CompletionAnswer,
  argumentSource,
  complete,
  completionScript,
  flagSource,
} from './completion.ts';
import { createProgram } from './program.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { makeFolder } from '../test/support/folder.ts';

const TERMINAL = makeTerminal();
const program = await createProgram(TERMINAL, () => true);
/** Names of a hostile cluster: a shell would run, split or expand the last ones, or read them as flags. */
const NAMES = [
  'desk',
  'dark.side',
  'd$(touch hit)',
  'd`touch hit`',
  'd*',
  'd e',
  'd;e',
  '--all',
  "d'e",
  'd\\e',
];

/** Returns the words that are offered at the end of the line, and the commands that were run to find them. */
async function offered(line: string, answer: CompletionAnswer = async () => `${NAMES.join('\n')}\n`) {
  const asked: string[] = [];
  const lines = await complete(
    program,
    line.split(' '),
    async (args, signal) => {
      asked.push(args.join(' '));
      return await answer(args, signal);
    },
    TERMINAL,
  );
  const offers = lines.trimEnd().split('\n');
  const directive = offers.pop();
  return { offers: offers.map((word) => word.split('\t')[0]), directive, asked };
}

it.each([
  ['ve', ['version']],
  ['vm-config d', ['delete']],
  ['vm st', ['start', 'stop']],
  ['vm deploy mac --display-', ['--display-width', '--display-height', '--display-dpi']],
  ['vm list -o ', ['table', 'wide', 'json', 'yaml', 'name']],
  ['-o wide vm ls -o n', ['name']],
  ['vm list --output=w', ['--output=wide']],
  ['vm delete desk --wait=', ['--wait=true', '--wait=false']],
  ['vm deploy --wait-for ', ['running', 'ready']],
  ['vm wait desk --for s', ['stopped', 'suspended']],
  ['server wait rack1-07 --for o', ['on', 'off']],
  ['server power r', ['reboot']],
  ['completion ', ['bash', 'zsh', 'fish']],
  ['help vm sus', ['suspend']],
  ['vm delete --wait --sel', ['--selector']],
  ['vm create d', []],
  ['vm save desk d', []],
  ['image copy desk d', []],
  ['image generate d', []],
  ['vm deploy --cpu ', []],
])('offers the words that can follow "berth %s", without the cluster', async (line, offers) => {
  expect(await offered(line)).toEqual({ offers, directive: ':4', asked: [] });
});

it.each([
  ['vm get d', ['vm list -o name']],
  ['-n lab vm-config get --context=x d', ['vmconfig list -o name --namespace=lab --context=x']],
  ['vm delete one -l a=b d', ['vm list -o name']],
  ['vm ssh d', ['vm list -o name']],
  ['vm deploy --image d', ['image list -o name']],
  ['vm create --config d', ['vmconfig list -o name']],
  ['iso create big --copy-of d', ['iso list -o name']],
  ['imagecache add d', ['image list -o name']],
  ['ic remove d', ['imagecache list -o name']],
  ['vm list -n d', ['namespace list -o name']],
  ['node namespace host-1 d', ['namespace list -o name']],
  ['emulator deploy --vm d', ['vm list -o name']],
  ['vm get-push-status d', ['vm get-push-status -o name']],
  ['image copy d', ['image list -o name']],
  ['server power on d', ['server list -o name']],
])('offers names for "berth %s", and nothing that a shell would run', async (line, asked) => {
  expect(await offered(line)).toEqual({ offers: ['desk', 'dark.side'], directive: ':4', asked });
});

it('offers the values of a list, each once', async () => {
  expect((await offered('imagecache add x --nodes desk,d')).offers).toEqual(['desk,dark.side']);
  expect((await offered('imagecache add x --nodes=desk,')).offers).toEqual(['--nodes=desk,dark.side']);
  expect((await offered('vm delete desk ')).offers).toEqual(['dark.side']);
});

it('offers the tags of hosts, the contexts of the kubeconfig, and files', async () => {
  const hosts = async () => JSON.stringify([{ tags: ['fast', 'big'] }, { tags: ['fast', '$(x)'] }]);
  expect((await offered('vm deploy --tag ', hosts)).offers).toEqual(['big', 'fast']);
  const folder = makeFolder();
  const file = join(folder, 'config');
  await writeFile(file, 'contexts: [{name: "arn:aws:eks:lab"}, {name: office}]');
  expect((await offered(`--kubeconfig ${file} vm list --context `)).offers).toEqual([
    'arn:aws:eks:lab',
    'office',
  ]);
  for (const line of ['--kubeconfig ', 'vm create -f ', 'vm scp ', 'vm exec desk -- cat ']) {
    expect([line, await offered(line)]).toEqual([line, { offers: [], directive: ':0', asked: [] }]);
  }
});

it('offers nothing, and says nothing, if the cluster fails or does not answer in time', async () => {
  const none = { offers: [], directive: ':4', asked: ['vm list -o name'] };
  expect(await offered('vm get ', async () => await Promise.reject(new Error('no route')))).toEqual(none);
  const limit = vi.spyOn(AbortSignal, 'timeout').mockReturnValue(AbortSignal.abort());
  expect(await offered('vm get ', async () => await new Promise(() => undefined))).toEqual(none);
  expect(limit).toHaveBeenCalledExactlyOnceWith(3_000);
});

/** Flags and arguments whose values only the user knows: new names, sizes, numbers, texts, labels and addresses. */
const FREE = new Set(
  `--selector --cpu vm-deploy---memory vm-create---memory vmconfig-create---memory emulator-deploy---memory --disk-size --display-width --display-height --display-dpi --user-data-secret --reserve-port
   --metadata --labels --timeout --system-serial --termination-grace-period-seconds --active-deadline-seconds
   --ttl-seconds-after-finished --description --tail --since --user --reference --url --sha256 --shared-file --size --api-url --server --issuer
   --alive-until pool-scale-replicas --client-id --platform --image-type --device-profile --duration --username --key
   vm-deploy-name vm-create-name vm-save-image image-copy-copy iso-copy-copy image-set-description-text iso-set-description-text
   remote-image-pull-copy remote-iso-pull-copy image-generate-name image-generate-size vm-push-reference vm-resize-size vm-exec-command vm-port-forward-ports vm-ssh-command
   vmconfig-create-name image-create-name iso-create-name user-set-token-token server-user-add-name server-user-remove-name
   emulator-deploy-name emulator-deploy---config namespace-create-name serviceaccount-create-names registry-add-server
   secret-create-name secret-delete-names --alive-until vm-run---memory --env-secret --copy --copy-out --life vm-run-command gitlab-prepare---memory --allow-image --builds-dir --cache-dir
   gitlab-run-script gitlab-run-stage snapshot-create-name`.split(/\s+/),
);

/** Returns the values of all commands, each with whether the completion has a source for them. */
function valuesOf(
  command: Command,
  path: readonly string[] = [],
): { name: string; flag?: string; isOffered: boolean }[] {
  const flags = command.options
    .filter(({ required, hidden }) => required && !hidden)
    .map((flag) => ({
      name: [...path, flag.long].join('-'),
      flag: flag.long ?? '',
      isOffered: flagSource(command, flag) !== undefined,
    }));
  const all = command.registeredArguments.map((argument) => ({
    name: [...path, argument.name()].join('-'),
    isOffered: argumentSource(command, argument) !== undefined,
  }));
  const below = command.commands.flatMap((next) => valuesOf(next, [...path, next.name()]));
  return [...flags, ...all, ...below];
}

it('knows for the value of each flag and argument where it comes from, or that only the user knows it', () => {
  const values = valuesOf(program);
  expect(values.length).toBeGreaterThan(200);
  const isFree = (name: string, flag = '') => FREE.has(name) || FREE.has(flag);
  expect(values.filter(({ name, flag, isOffered }) => isOffered === isFree(name, flag))).toEqual([]);
});

it('offers only words that their flags take', () => {
  const taken: string[] = [];
  const check = (command: Command): void => {
    for (const flag of command.options.filter(({ hidden }) => !hidden)) {
      const source = flagSource(command, flag);
      for (const word of source?.from === 'choices' ? source.choices : []) {
        expect(() => flag.parseArg?.(word, undefined as never)).not.toThrow();
        taken.push(word);
      }
    }
    command.commands.forEach(check);
  };
  check(program);
  expect(taken).toEqual(expect.arrayContaining(['suspended', 'guest-agent', 'condition=Ready', 'true']));
});

/** Runs work with a folder that has a program `berth`, which writes its arguments to a file, and then `text`. */
async function withProgram(text: string, work: (folder: string) => Promise<void>): Promise<void> {
  const folder = makeFolder();
  const script = `#!/bin/sh\nprintf '<%s>' "$@" >'${folder}/asked'\nprintf %b '${text}'\n`;
  await writeFile(join(folder, 'berth'), script, { mode: 0o755 });
  await work(folder);
}

it.each([
  { line: 'vm st', text: 'start\\tStart VMs\\nstop\\n:4\\n', asked: '<vm><st>', offers: ['start', 'stop'] },
  { line: 'vm get ', text: 'desk\\n:4\\n', asked: '<vm><get><>', offers: ['desk'] },
  {
    line: 'vm ls --output=w',
    text: '--output=wide\\n:4\\n',
    asked: '<vm><ls><--output=w>',
    offers: ['wide'],
  },
  { line: 'ic add r:5', text: 'r:50/d\\n:4\\n', asked: '<ic><add><r:5>', offers: ['50/d'] },
  { line: 'vm get x', text: ':4\\n', asked: '<vm><get><x>', offers: [] },
])('hands bash the part of each word that bash replaces: $line', async ({ line, text, asked, offers }) => {
  await withProgram(text, async (folder) => {
    const script = `${completionScript('bash', 'berth')}
COMP_LINE=$1; COMP_POINT=\${#1}; _berth; printf '%s\\n' "\${COMPREPLY[@]}"`;
    const out = execFileSync('bash', ['-c', script, 'bash', `${folder}/berth ${line}`], { encoding: 'utf8' });
    expect(out.split('\n').filter(Boolean)).toEqual(offers);
    expect(await readFile(join(folder, 'asked'), 'utf8')).toBe(`<__complete>${asked}`);
  });
});

it('completes the plug-in of kubectl with the script of the docs', async () => {
  const page = await readFile(join(import.meta.dirname, '../docs/how-to/command.md'), 'utf8');
  const [, script = ''] = /```sh\n(#!\/bin\/sh\n[^`]+)```/.exec(page) ?? [];
  await withProgram('start\\tStart VMs\\n:4\\n', async (folder) => {
    await writeFile(join(folder, 'kubectl_complete-berth'), script, { mode: 0o755 });
    const env = { PATH: `${folder}:${process.env.PATH}` };
    const out = execFileSync(join(folder, 'kubectl_complete-berth'), ['vm', 'st'], { encoding: 'utf8', env });
    expect(out).toBe('start\tStart VMs\n:4\n');
    expect(await readFile(join(folder, 'asked'), 'utf8')).toBe('<__complete><vm><st>');
  });
});
