// A real OpenID Connect provider on loopback: the certified `oidc-provider` of npm, with one client.
// A user who types a name is logged in as that person. Arguments: redirect address, client id, client secret.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const [redirect, id, secret] = process.argv.slice(2);
// Nobody reads standard output after the first line.
console.info = console.error;
const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{ client_id: id, client_secret: secret, redirect_uris: [redirect] }],
    claims: { openid: ['sub'], profile: ['preferred_username'], email: ['email', 'email_verified'] },
    pkce: { required: () => true },
    async findAccount(_, name) {
      const email = `${name}@example.org`;
      return {
        accountId: name,
        claims: async () => ({ sub: `subject-of-${name}`, preferred_username: name, email, email_verified: true }),
      };
    },
  });
  server.on('request', provider.callback());
  console.log(issuer);
});
