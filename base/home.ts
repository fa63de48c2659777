import { homedir } from 'node:os';

/** Returns the user's home folder, or the root folder. In a container, a user can have neither `HOME` nor an entry in the user database. */
export function homeFolder({ HOME: home }: Readonly<Record<string, string | undefined>>): string {
  try {
    return home || homedir();
  } catch {
    // `homedir` throws if the system does not know the user.
    return '/';
  }
}
