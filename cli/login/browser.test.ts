import { expect, it } from 'vitest';
import { browserCommand } from './browser.ts';

it.each([
  [{ BROWSER: 'firefox --new-tab:lynx', SSH_CONNECTION: 'a' }, 'linux', ['firefox', '--new-tab']],
  [{ BROWSER: '' }, 'darwin', ['open']],
  [{ SSH_CONNECTION: '10.0.0.1 1 10.0.0.2 22' }, 'darwin', undefined],
  [{}, 'win32', ['rundll32', 'url.dll,FileProtocolHandler']],
  [{ DISPLAY: ':0' }, 'linux', ['xdg-open']],
  [{ WAYLAND_DISPLAY: 'wayland-0' }, 'linux', ['xdg-open']],
  [{ DISPLAY: ':10', SSH_CONNECTION: 'a' }, 'linux', undefined],
  [{}, 'linux', undefined],
])('in %j on %s it is %j', (environment, platform, command) => {
  expect(browserCommand(environment, platform)).toEqual(command);
});
