import { homedir } from 'node:os';

/**
 * Returns the user's home folder. If the user has none, returns the root folder. In a container, there is sometimes neither the variable
 * `HOME` nor an entry for the user in the user database.
 */
export function homeFolder({ HOME: home }: Readonly<Record<string, string | undefined>>): string {
  try {
    return home || homedir();
  } catch {
    // `homedir` throws if the system does not know the user.
    return '/';
  }
}
