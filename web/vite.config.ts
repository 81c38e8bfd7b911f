// One page, one script, one style sheet, under fixed names: the server embeds these files and nothing else.
import { defineConfig } from "vite";

const server = "http://127.0.0.1:8000";

export default defineConfig({
  build: {
    outDir: "../crates/server/ui",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rollupOptions: {
      output: {
        inlineDynamicImports: true,
        entryFileNames: "app.js",
        assetFileNames: "app[extname]",
      },
    },
  },
  // `npm run dev`: the page from here, the data from a running `twostroke serve`.
  server: { proxy: { "/live": server, "/v1": server, "/plan": server, "/tokenize": server } },
});
