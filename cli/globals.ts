/** Flags that every command has. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { messageOf } from '../base/errors.ts';
import { templateIn } from './jsonpath.ts';
import { type Format, FORMATS, isTemplate, JSONPATH } from './output.ts';

export interface Globals {
  readonly namespace?: string;
  readonly output: Format;
  readonly kubeconfig?: string;
  readonly context?: string;
}

export function addGlobals(program: Command): void {
  program
    .addOption(new Option('-n, --namespace <name>', 'namespace of the objects'))
    .addOption(outputFlag())
    .addOption(new Option('--kubeconfig <file>', 'kubeconfig file'))
    .addOption(new Option('--context <name>', 'context of the kubeconfig'));
}

function outputFlag(): Option {
  const words = `${FORMATS.join(', ')} or ${JSONPATH}TEMPLATE`;
  const option = new Option(
    '-o, --output <format>',
    `format of the output: one of the choices, or ${JSONPATH}TEMPLATE`,
  ).default('table');
  // Shell completion offers only these formats. The parser of the flag also accepts templates.
  option.argChoices = [...FORMATS];
  return option.argParser((text) => formatIn(text, words));
}

function formatIn(text: string, words: string): Format {
  if (isTemplate(text)) {
    try {
      templateIn(text.slice(JSONPATH.length));
    } catch (error) {
      throw new InvalidArgumentError(`${messageOf(error)}.`);
    }
    return text;
  }
  const format = FORMATS.find((one) => one === text);
  if (format === undefined) {
    throw new InvalidArgumentError(`Allowed choices are ${words}.`);
  }
  return format;
}
