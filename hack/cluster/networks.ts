/** Removes what the networks of killed agents leave on this machine. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { networkNames } from '../../agent/networkdriver.ts';
import { removal } from '../../agent/network/user.ts';
import { undefinedIf } from '../../base/errors.ts';
import { ProgramError, run } from '../../base/exec.ts';
import { listFolders } from '../../base/files.ts';

/** Time limit of nft, which ends within milliseconds. */
const NFT = { timeoutMilliseconds: 10_000 };

/**
 * Removes the nftables tables and the folders in /run of all agents whose data directories are in this folder. An agent leaves them if it is
 * killed, or if machines run when it ends. Call this function when the agents have ended, because a running agent loads its table again. If
 * nft is missing or this process may not use it, no agent has a table.
 */
export async function removeNetworks(directory: string): Promise<void> {
  const isUnusable = (error: unknown): boolean => error instanceof ProgramError;
  const tables = (await undefinedIf(isUnusable, run('nft', ['list', 'tables'], NFT))) ?? '';
  for (const host of await listFolders(directory)) {
    const { guardTable, runtimeDirectory } = networkNames(join(directory, host));
    if (tables.includes(`table inet ${guardTable}\n`)) {
      await run('nft', ['-f', '-'], { ...NFT, input: removal(guardTable) });
    }
    await rm(runtimeDirectory, { recursive: true, force: true });
  }
}
