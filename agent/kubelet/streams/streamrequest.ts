/** Parses requests for streams, as the API server sends them to a kubelet. */
import { HttpError } from '../../../kube/serving/httperror.ts';
import type { WantedStreams } from './session.ts';

export type StreamKind = 'exec' | 'attach' | 'portForward';

export interface StreamRequest {
  kind: StreamKind;
  namespace: string;
  pod: string;
  /** Name of the container. Undefined for `portForward`, because its requests name no container. */
  container: string | undefined;
  /** Program and arguments of `exec`. */
  command: readonly string[];
  streams: WantedStreams;
  /** Whether the caller uses a terminal. */
  tty: boolean;
}

export function isStreamKind(text: string): text is StreamKind {
  return text === 'exec' || text === 'attach' || text === 'portForward';
}

/**
 * Parses `/exec/NAMESPACE/POD/CONTAINER?…`, `/attach/NAMESPACE/POD/CONTAINER?…` or `/portForward/NAMESPACE/POD?…`. Names are used
 * unchanged, because valid names need no URL escapes.
 */
export function parseStreamRequest(kind: StreamKind, { pathname, searchParams }: URL): StreamRequest {
  const [, , namespace = '', pod = '', container = ''] = pathname.split('/');
  const isSet = (name: string): boolean => ['1', 'true'].includes(searchParams.get(name) ?? '');
  const tty = isSet('tty');
  const command = searchParams.getAll('command');
  return {
    kind,
    namespace,
    pod,
    container: kind === 'portForward' ? undefined : container,
    command,
    streams: {
      stdin: isSet('input'),
      stdinEnd: kind === 'exec',
      stdout: isSet('output'),
      stderr: isSet('error') && !tty,
      resize: tty,
    },
    tty,
  };
}

/**
 * Checks the command of a request for `exec`. @throws HttpError 400 when the request asks for a terminal, which guest agents do not have,
 * or when the command is empty.
 */
export function checkCommand({ kind, command: [path], tty }: StreamRequest): void {
  if (kind !== 'exec') {
    return;
  }
  if (tty) {
    const others = 'use kubectl attach -it for the console, or ssh through kubectl port-forward';
    throw new HttpError(400, `A guest agent has no terminals: leave out -t, or ${others}`);
  }
  if (path === undefined || path === '') {
    throw new HttpError(400, 'The command is empty');
  }
}
