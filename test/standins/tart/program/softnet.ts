/** How the stand-in for `tart` starts the program `softnet`, which filters the packets of a guest. */
import { SOFTNET_ENDED } from './answers.ts';
import { CODES, Refused, type Values } from './arguments.ts';

/** What the program takes as a network. */
const TARGET = /^(@host|\d+\.\d+\.\d+\.\d+\/\d+)$/;

/** Returns the program with its parameters. Any of the options switches it on. Undefined if nothing is filtered. @throws Refused */
export function softnetCommand(
  values: Values,
  macAddress: string,
  find: (program: string) => string | undefined,
): readonly [string, ...string[]] | undefined {
  const lists = ['allow', 'block', 'expose'].flatMap((list) => {
    const value = values[`net-softnet-${list}`];
    return value === undefined ? [] : [[`--${list}`, String(value)] as const];
  });
  if (values['net-softnet'] !== true && lists.length === 0) {
    return undefined;
  }
  if (values['net-host'] === true || values['net-bridged'] !== undefined) {
    throw new Refused(
      CODES.usage,
      'Error: --net-bridged, --net-softnet and --net-host are mutually exclusive',
    );
  }
  const program = find('softnet');
  if (program === undefined) {
    throw new Refused(CODES.other, 'InitializationFailed(why: "softnet not found in PATH")');
  }
  const targets = lists.filter(([list]) => list !== '--expose').flatMap(([, text]) => text.split(','));
  if (!targets.every((target) => TARGET.test(target))) {
    throw new Refused(SOFTNET_ENDED.code, SOFTNET_ENDED.stderr.trim());
  }
  return [program, '--vm-fd', '0', '--vm-mac-address', macAddress, ...lists.flat()];
}
