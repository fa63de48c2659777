/** Flags that every command has. */
import { type Command, Option } from 'commander';
import { type Format, FORMATS } from './output.ts';

export interface Globals {
  readonly namespace?: string;
  readonly output: Format;
  readonly kubeconfig?: string;
  readonly context?: string;
}

export function addGlobals(program: Command): void {
  program
    .addOption(new Option('-n, --namespace <name>', 'namespace of the objects'))
    .addOption(new Option('-o, --output <format>', 'format of the output').choices(FORMATS).default('table'))
    .addOption(new Option('--kubeconfig <file>', 'kubeconfig file'))
    .addOption(new Option('--context <name>', 'context of the kubeconfig'));
}
