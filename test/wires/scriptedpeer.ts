/** A scripted peer behind a Unix socket of a machine: a guest agent or a hypervisor. */
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';

export interface PeerCommand {
  execute: string;
  id?: number;
  arguments?: { id?: number } & Record<string, unknown>;
}

/** Byte before a sync and before its answer. It is never a part of JSON. */
const DELIMITER = 0xff;

export type Play = (socket: Socket, command: PeerCommand) => void;

export class ScriptedPeer {
  /** Names of the received commands. */
  readonly commands: string[] = [];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(server: Server) {
    this.#server = server;
  }

  /** Listens at `path` in place of the peer that listened there before. `play` is called for each command. */
  static async listen(path: string, play: Play): Promise<ScriptedPeer> {
    await rm(path, { force: true });
    const server = createServer();
    const peer = new ScriptedPeer(server);
    server.on('connection', (socket) => peer.#play(socket, play));
    server.listen(path);
    await once(server, 'listening');
    return peer;
  }

  #play(socket: Socket, play: Play): void {
    this.#sockets.add(socket);
    // The script continues also when the agent hangs up.
    socket.on('error', () => undefined);
    let text = '';
    socket.on('data', (data: Buffer) => {
      text += Buffer.from(data.filter((byte) => byte !== DELIMITER)).toString();
      const lines = text.split('\n');
      text = lines.pop() ?? '';
      for (const line of lines) {
        const command = JSON.parse(line) as PeerCommand;
        this.commands.push(command.execute);
        play(socket, command);
      }
    });
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    this.#server.close();
    await once(this.#server, 'close');
  }
}

/** Returns the script of a guest agent that answers a sync as it should, and every other command with `answer`. */
export function afterSync(answer: Play): Play {
  return (socket, command) => {
    if (command.execute === 'guest-sync-delimited') {
      socket.write(Buffer.of(DELIMITER));
      socket.write(`{"return":${command.arguments?.id}}\n`);
    } else {
      answer(socket, command);
    }
  };
}
