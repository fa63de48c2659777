/**
 * A process with scripted guest agents, so that their work is not the work of the tested process. Its arguments are folders. The name of a
 * folder chooses the script: `honest`, or one of the hostile answers. Prints `ready` when all guest agents listen.
 */
import { basename, join } from 'node:path';
import { afterSync, type Play, ScriptedPeer } from '../../wires/scriptedpeer.ts';

const MEBIBYTE = 1024 * 1024;
const LINE_BYTES = 10 * MEBIBYTE;

/** Returns an answer of 10 MiB to `guest-exec-status` in which `piece` is repeated outside of the known fields. */
function flood(piece: string): Buffer {
  return Buffer.from(
    `{"return":{"exited":true,"exitcode":0,"x":[${piece.repeat(LINE_BYTES / piece.length)}0]}}\n`,
  );
}

const output = Buffer.alloc(4 * MEBIBYTE, 'x').toString('base64');
const keys = Array.from({ length: 64 }, (_, index) => `{"key${index}":0},`).join('');
const STATUS: Readonly<Record<string, Buffer>> = {
  honest: Buffer.from('{"return":{"exited":true,"exitcode":0,"out-data":"aGVsbG8K"}}\n'),
  lists: flood('[],'),
  keys: flood(keys),
  numbers: flood('1e5,'),
  output: Buffer.from(
    `{"return":{"exited":true,"exitcode":0,"out-data":"${output}","err-data":"${output}"}}\n`,
  ),
};
/** Answer of 1 MiB to each question of the readiness, for hostile guests. */
const READINESS = Buffer.from(`{"return":[${'[],'.repeat(MEBIBYTE / 3)}0]}\n`);
const SHORT = Buffer.from('{"return":{}}\n');

function playOf(name: string): Play {
  return afterSync((socket, { execute }) => {
    if (execute === 'guest-exec') {
      socket.write('{"return":{"pid":7}}\n');
    } else if (execute === 'guest-exec-status') {
      socket.write(STATUS[name] ?? SHORT);
    } else {
      socket.write(name === 'honest' || execute === 'guest-ping' ? SHORT : READINESS);
    }
  });
}

for (const folder of process.argv.slice(2)) {
  await ScriptedPeer.listen(join(folder, 'ga.sock'), playOf(basename(folder)));
}
process.stdout.write('ready\n');
