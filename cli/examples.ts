/** Examples in the help of the commands. */
import type { Command } from 'commander';

/** Arguments of an example by the path of its command. The commands whose path is an example themselves are not in the table. */
const EXAMPLES: Readonly<Record<string, string>> = {
  'vm list': '-l team=ci -o wide',
  'vm get': 'build',
  'vm delete': '-l team=ci',
  'vm deploy': 'build --image debian-cloud --cpu 4 --memory 8Gi --wait-for ready',
  'vm create': '-f vms.yaml',
  'vm save': 'build debian-tools -d "Debian with compilers"',
  'vm commit': 'build',
  'vm push': 'build registry.example/team/debian-tools:1',
  'vm resize': 'build 120G',
  'vm wait': 'build --for ready --timeout 5m',
  'vm why': 'build',
  'vm start': 'build',
  'vm stop': 'build',
  'vm restart': 'build',
  'vm suspend': 'build',
  'vm resume': 'build',
  'vm revert': 'build',
  'vm exec': 'build -- uname -a',
  'vm console': 'build',
  'vm logs': 'build -f --tail 50',
  'vm screenshot': 'build build.png',
  'vm port-forward': 'build 8080:80 :vnc',
  'vm ssh': 'build -u debian -- uptime',
  'vm scp': '-r results build:/tmp/',
  'vm vnc': 'build',
  'vmconfig get': 'ci',
  'vmconfig delete': 'ci',
  'vmconfig create': 'ci --image debian-cloud --cpu 4 --memory 8Gi',
  'image get': 'debian-tools',
  'image delete': 'debian-tools',
  'image create': 'debian --reference registry.example/debian:13',
  'iso get': 'installer',
  'iso delete': 'installer',
  'iso create': 'installer --reference registry.example/installer:1',
  'imagecache info': 'debian-tools',
  'imagecache add': 'debian-tools --tags fast',
  'imagecache remove': 'debian-tools --all',
  login: '--api-url https://berth.example',
  'user login': '--device',
  'user set-token': '-',
  credential: '--session berth',
  'node get': 'host-1',
  'node tag': 'host-1 fast',
  'node untag': 'host-1 fast',
  'node give-up': 'host-1',
  'node namespace': 'host-1 platform-ci',
  'server get': 'rack1-07',
  'server power': 'on rack1-07',
  'server wait': 'rack1-07 --for on',
  'server user add': 'ci --password-stdin',
  'server user remove': 'ci',
  'emulator get': 'pixel',
  'emulator delete': 'pixel',
  'emulator deploy': 'pixel --vm build',
  'namespace create': 'platform-ci',
  'namespace delete': 'platform-ci',
  'serviceaccount create': 'ci',
  'serviceaccount delete': 'ci',
  'serviceaccount token': 'ci --duration 720h',
  'rolebinding add-subject': '--user ann,ben',
  'rolebinding remove-subject': '--user ann',
  'registry add': 'https://registry.example --username ci --password-stdin',
  'registry delete': 'https://registry.example',
  'secret create': 'setup --from-file setup.yaml',
  'config set': '--api-url https://berth.example',
  explain: 'vm.spec.ports',
  completion: 'bash',
};

/** Adds an example to the help of each command without further commands. `name` is the name of the program. */
export function addExamples(command: Command, name: string, path: readonly string[] = []): void {
  for (const next of command.commands) {
    addExamples(next, name, [...path, next.name()]);
  }
  if (command.commands.length === 0) {
    const example = [name, ...path, EXAMPLES[path.join(' ')] ?? ''].join(' ').trimEnd();
    command.addHelpText('after', `\nExample:\n  ${example}`);
  }
}
