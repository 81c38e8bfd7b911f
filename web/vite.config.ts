// One page, a script, others that are fetched when an answer has code, or the calculator or the tour is opened, one style sheet, and the
// licences of what is in the scripts, under fixed names: the server embeds these files and nothing else.
import { defineConfig } from "vite";
import { licences } from "./licences.mjs";

const server = "http://127.0.0.1:8000";

export default defineConfig({
  plugins: [licences()],
  build: {
    outDir: "../crates/server/ui",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: true,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "[name].js",
        assetFileNames: "app[extname]",
      },
    },
  },
  // `npm run dev`: the page from here, the data from a running `twostroke serve`.
  server: { proxy: { "/live": server, "/v1": server, "/plan": server, "/tokenize": server } },
});
