import { homedir } from 'node:os';

/** Returns the folder of the user, or the root folder if the user has none. In a container, a user may have neither `HOME` nor a name. */
export function homeFolder({ HOME: home }: Readonly<Record<string, string | undefined>>): string {
  try {
    return home || homedir();
  } catch {
    // The system does not know the user.
    return '/';
  }
}
