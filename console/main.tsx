/** Starts the console in the page. */
import { render } from 'preact';
import { App } from './views/app.tsx';

const page = document.getElementById('page');
if (page !== null) {
  render(<App />, page);
}
