import "./style.css";
import { start } from "./app";
import { mount as calculator } from "./pages/calculator";
import { mount as chat } from "./pages/chat";
import { mount as learn } from "./pages/learn";
import { mount as live } from "./pages/live";
import { mount as step } from "./pages/step";

start({ live, step, chat, calculator, learn });
