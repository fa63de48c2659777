/** Asks the file server of a folder by a program, because a call of Node.js for a folder of a dead server never returns. */

/**
 * Returns the command line that asks the server, for a call with a time limit. The kernel must not answer from its cache: `stat` asks the
 * server with `--file-system`. The `stat` of macOS has no such option, but `df` asks there.
 */
export function askFileServer(folder: string): { program: string; parameters: string[] } {
  return process.platform === 'linux'
    ? { program: 'stat', parameters: ['--file-system', '--', folder] }
    : { program: 'df', parameters: ['--', folder] };
}
